"""The number of threads is torch's, before and after."""

import subprocess
import sys

PROGRAM = """
import torch
torch.set_num_threads(1)
import samplewise
leaves = [torch.randn(1, 9, 4, requires_grad=True), torch.randn(1, 3, 4), torch.randn(7, 4)]
lengths = torch.tensor([9]), torch.tensor([2])
samplewise.transducer_loss(*leaves, None, torch.tensor([[1, 2]]), *lengths).backward()
print(torch.get_num_threads())
"""


def test_a_loss_leaves_torchs_number_of_threads():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
