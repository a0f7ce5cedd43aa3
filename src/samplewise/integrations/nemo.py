"""NVIDIA NeMo: its RNNTLoss under the same names, and a patch that lets its joints compute the loss without the 4-D tensor.

Nothing of NeMo is imported; looked at: nemo_toolkit 3.0.0.
"""

from samplewise.integrations.nemo_joint import patch, unpatch
from samplewise.integrations.nemo_loss import RNNTLoss

__all__ = ["RNNTLoss", "patch", "unpatch"]
