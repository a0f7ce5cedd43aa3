"""Exact neural transducer losses that never hold the 4-D output tensor (B, T, U+1, V)."""

from samplewise import topology
from samplewise.errors import TransducerError
from samplewise.functional import joint_loss, rnnt_loss, transducer_loss
from samplewise.labels import label_lengths
from samplewise.lattice import lattice_loss
from samplewise.modules import Joiner, TransducerLoss
from samplewise.observe import Observation, observe
from samplewise.plan import Plan, plan
from samplewise.vocabulary import SampledVocabulary, sample_vocabulary

__all__ = [
    "Joiner",
    "Observation",
    "Plan",
    "SampledVocabulary",
    "TransducerError",
    "TransducerLoss",
    "joint_loss",
    "label_lengths",
    "lattice_loss",
    "observe",
    "plan",
    "rnnt_loss",
    "sample_vocabulary",
    "topology",
    "transducer_loss",
]
__version__ = "0.1.0"
