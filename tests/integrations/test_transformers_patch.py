"""What a patch leaves alone, how long it lasts, what it refuses: generation, saving, copies, wrappers, output layers."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import transformers
from torch import nn

import samplewise
from samplewise import TransducerError
from samplewise.integrations.output_layer import output_layer
from samplewise.integrations.transformers import patch, unpatch
from tests.integrations.parakeets import BLANK, KINDS, batch_of, furthest, gradients, make, still, truth, twin


def is_patched(model):
    """As it shows: labels give a loss, and no logits."""
    output = model(**batch_of())
    return output.logits is None and output.loss is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_generation_and_calls_without_labels(kind):
    stock = make(kind).eval()
    stock.generation_config.decoder_start_token_id = BLANK
    batch = {name: x for name, x in batch_of(kind).items() if name not in ("labels", "decoder_input_ids")}
    model = patch(twin(stock))
    assert torch.equal(model.generate(**batch).sequences, stock.generate(**batch).sequences)
    inputs = torch.tensor([[BLANK, 4, 5]] * 3)
    logits = model(**batch, decoder_input_ids=inputs).logits
    assert logits.dim() == 4 and torch.equal(logits, stock(**batch, decoder_input_ids=inputs).logits)


def test_nothing_of_it_is_saved(tmp_path):
    model = patch(make(dtype=torch.float32), reduction="sum")
    names = list(model.state_dict())
    model.save_pretrained(tmp_path)
    assert "samplewise" not in (tmp_path / "config.json").read_text()
    assert model.config.architectures == ["ParakeetForRNNT"]
    again = transformers.AutoModelForRNNT.from_pretrained(tmp_path)
    assert type(again) is transformers.ParakeetForRNNT and not hasattr(again, "accepts_loss_kwargs")
    assert list(again.state_dict()) == names == list(make().state_dict())
    assert all(torch.equal(x, model.state_dict()[name]) for name, x in again.state_dict().items())


def test_unpatched_it_is_what_it_was():
    stock = make("ParakeetForTDT")
    joint, before = type(stock.joint), dict(vars(stock))
    model = patch(stock)
    assert model is stock and isinstance(model, transformers.ParakeetForTDT) and type(model).__name__ == "ParakeetForTDT"
    assert unpatch(model) is model and type(model) is transformers.ParakeetForTDT and type(model.joint) is joint
    assert vars(model).keys() == before.keys()
    with pytest.raises(TransducerError, match="not patched"):
        unpatch(model)


def test_twice_is_an_error():
    model = patch(make(), reduction="sum")
    with pytest.raises(TransducerError, match="patched already"):
        patch(model)
    assert is_patched(model) and is_patched(patch(unpatch(model)))


@pytest.mark.parametrize("reduction, expected", [(None, True), ("sum", True), ("mean", False), ("mean_batch", False)])
def test_what_trainer_is_told(reduction, expected):
    model = patch(make(), reduction=reduction)
    assert model.accepts_loss_kwargs is expected and not hasattr(unpatch(model), "accepts_loss_kwargs")
    model.accepts_loss_kwargs = not expected  # what a script says itself stays
    assert patch(model, reduction=reduction).accepts_loss_kwargs is not expected
    assert unpatch(model).accepts_loss_kwargs is not expected


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
def test_copies_are_patched_on_their_own(how):
    model = still(patch(make(), reduction="sum"))
    other = still(how(model))
    assert is_patched(other) and torch.equal(other(**batch_of()).loss, model(**batch_of()).loss)
    unpatch(model)
    assert is_patched(other) and not hasattr(model, "accepts_loss_kwargs")
    nn.init.zeros_(other.joint.head.weight)
    assert model.joint.head.weight.abs().sum() > 0
    assert type(unpatch(other)) is transformers.ParakeetForRNNT


def test_a_forward_that_fails_leaves_nothing_behind():
    model, batch = patch(make()), batch_of()
    with pytest.raises(RuntimeError):
        model(**batch | {"input_features": batch["input_features"][..., :7]})
    encodings = torch.randn(1, 5, 1, 24, dtype=torch.float64), torch.randn(1, 1, 3, 24, dtype=torch.float64)
    logits = model.joint(encoder_hidden_states=encodings[0], decoder_hidden_states=encodings[1])
    assert logits.shape == (1, 5, 3, 21)


def test_the_joint_by_itself_is_a_joint():
    """`joint_loss` calls it on its own."""
    model, batch = patch(make()), batch_of()
    encoded = model.get_audio_features(batch["input_features"], batch["attention_mask"])
    decoded = model.decoder(batch["decoder_input_ids"])
    frames, labels = encoded.attention_mask.sum(-1), torch.tensor([5, 3, 0])
    loss = samplewise.joint_loss(
        model.joint, encoded.pooler_output, decoded, batch["labels"], frames, labels, blank=BLANK, reduction="sum"
    )
    own = model(encoder_outputs=encoded, labels=batch["labels"], reduction="sum").loss
    torch.testing.assert_close(own, loss, rtol=1e-10, atol=0.0)


def test_what_it_takes():
    with pytest.raises(TransducerError, match=r"model is a Linear; patch takes one of ParakeetForRNNT, .*before anything"):
        patch(nn.Linear(2, 2))
    with pytest.raises(TransducerError, match=r"config.hidden_act is 'gelu_new'; it must be one of 'tanh', 'relu'"):
        patch(make(hidden_act="gelu_new"))
    with pytest.raises(TransducerError, match=r"sigma is 0.1, but parakeet_rnnt has no durations"):
        patch(make(), sigma=0.1)
    for options, words in (
        ({"reduction": "average"}, "reduction is 'average'; it must be one of 'mean_batch', 'mean', 'mean_volume', 'sum'"),
        ({"method": "fast"}, "method is 'fast'"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"memory_budget": "many"}, "many"),
        ({"fastemit_lambda": -1.0}, "fastemit_lambda is -1.0"),
    ):
        model = make()
        with pytest.raises(TransducerError, match=words):
            patch(model, **options)
        assert type(model) is transformers.ParakeetForRNNT and not hasattr(model, "accepts_loss_kwargs")


@pytest.mark.parametrize(
    "change, words",
    [
        ({"labels": torch.tensor([[3, 21], [4, 5], [6, 7]])}, r"labels\[0, 1\] is 21, but there are 21 classes"),
        ({"labels": torch.tensor([[3, -100], [4, 5], [-100, 7]])}, r"labels\[2, 0\] is -100.*padding must follow"),
        ({"labels": torch.full((3, 5), 3.0)}, "labels is torch.float32"),
        ({"labels": torch.full((3, 9), 3)}, r"label_lengths\[0\] is 9, which needs 10 rows of decoder_input_ids, but it has 6"),
        ({"labels": torch.full((2, 5), 3)}, "labels has 2 utterances"),
        ({"attention_mask": torch.arange(120)[None] < torch.tensor([120, 0, 64])[:, None]},
         r"attention_mask's frames\[1\] is 0, but pooler_output has 15 frames"),
        ({"reduction": "average"}, "reduction is 'average'"),
        ({"sigma": 0.1}, "sigma is 0.1"),
    ],
)  # fmt: skip
def test_bad_batches(change, words):
    with pytest.raises(TransducerError, match=words):
        patch(make())(**batch_of() | change)


def test_a_forward_that_was_replaced():
    """As accelerate does for mixed precision: the patch would not be reached."""
    model = make()
    model.forward = model.forward
    with pytest.raises(TransducerError, match=r"model.forward was replaced"):
        patch(model)
    model = patch(make())
    model.joint = make().joint
    with pytest.raises(TransducerError, match="joint was replaced"):
        model(**batch_of())


class LowRank(nn.Module):
    """A linear layer with an adapter, as LoRA has it."""

    def __init__(self, base, dropout=0.0):
        super().__init__()
        self.base_layer, self.dropout = base.requires_grad_(False), nn.Dropout(dropout)
        self.lora_A = nn.Linear(base.in_features, 3, bias=False, dtype=base.weight.dtype)
        self.lora_B = nn.Linear(3, base.out_features, bias=False, dtype=base.weight.dtype)

    def forward(self, x):
        return self.base_layer(x) + 2.0 * self.lora_B(self.lora_A(self.dropout(x)))


class Gathered(nn.Linear):
    """Holds no numbers outside of its forward: a hook brings them, another takes them away."""

    def __init__(self, base):
        super().__init__(base.in_features, base.out_features, dtype=base.weight.dtype)
        self.whole, self.bias = base.weight, base.bias
        self.weight = nn.Parameter(torch.empty(0, dtype=base.weight.dtype))
        self.register_forward_pre_hook(lambda module, args: module.gather())

    def gather(self):
        self.given = self.whole * 1.0

    def forward(self, x):
        given, self.given = self.given, None
        return nn.functional.linear(x, given, self.bias)


def parametrized(head):
    nn.utils.parametrizations.weight_norm(head)
    return head


WRAPPERS = {"adapter": LowRank, "parametrized": parametrized, "gathered": Gathered}


@pytest.mark.parametrize("kind", ["ParakeetForRNNT", "ParakeetForTDT"])
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_an_output_layer_that_something_wraps(wrap, kind):
    """What the layer's own forward computes counts, and gradients reach what learns in it."""
    stock, batch = still(make(kind)), batch_of(kind)
    stock.joint.head = WRAPPERS[wrap](stock.joint.head)
    model = still(patch(twin(stock)))
    right, loss = truth(stock, batch, "sum"), model(**batch, reduction="sum").loss
    torch.testing.assert_close(loss, right, rtol=1e-10, atol=0.0)
    assert furthest(gradients(model, loss), gradients(stock, right)) <= 1e-8
    if wrap == "adapter":
        plain = still(make(kind))
        assert abs(truth(plain, batch, "sum") - right) > 1e-2


def test_an_adapter_added_after_the_patch():
    stock, batch = still(make()), batch_of()
    model = still(patch(twin(stock)))
    adapter = LowRank(twin(stock.joint.head))
    stock.joint.head, model.joint.head = adapter, copy.deepcopy(adapter)
    torch.testing.assert_close(model(**batch, reduction="sum").loss, truth(stock, batch, "sum"), rtol=1e-10, atol=0.0)


class Calls(nn.Module):
    """Calls forward, past any hooks, as adapters' models do."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model.forward(**batch)


def test_a_wrapper_that_calls_forward():
    model = still(patch(make()))
    assert torch.equal(Calls(model)(**batch_of()).loss, model(**batch_of()).loss)


def test_a_copy_of_the_joint_that_learns_in_place_of_it():
    """As adapters keep modules that are trained whole."""

    class Saved(nn.Module):
        def __init__(self, joint):
            super().__init__()
            self.original_module, self.trained = joint, copy.deepcopy(joint)

        def forward(self, *args, **kwargs):
            return self.trained(*args, **kwargs)

    for before in (True, False):
        model = make()
        model = still(patch(model) if before else model)
        model.joint = Saved(model.joint)
        model = model if before else patch(model)
        model(**batch_of()).loss.backward()
        assert model.joint.trained.head.weight.grad.abs().sum() > 0 and model.joint.original_module.head.weight.grad is None
        assert type(unpatch(model).joint.trained) is type(make().joint)


@pytest.mark.parametrize(
    "head, words",
    [
        (LowRank(nn.Linear(4, 6), dropout=0.1), r"joint.head.dropout drops out .* probability 0.1"),
        (nn.Sequential(nn.Linear(4, 6), nn.Tanh()), "joint.head is not a linear layer"),
        (nn.Sequential(nn.Linear(4, 6), nn.Flatten(0)), r"joint.head gives \(36,\)"),
        (nn.Linear(4, 6, device="meta"), r"joint.head.weight has shape \(6, 4\) on meta"),
    ],
)
def test_output_layers_that_are_refused(head, words):
    with pytest.raises(TransducerError, match=words):
        output_layer(head, torch.zeros(2, 3, 4))


def test_an_empty_weight_that_nothing_brings():
    head = nn.Linear(4, 6)
    head.weight = nn.Parameter(torch.empty(0))
    with pytest.raises(TransducerError, match=r"joint.head.weight has shape \(0,\)"):
        output_layer(head, torch.zeros(2, 3, 4))


def test_dropout_that_is_off_is_none():
    weight, bias = output_layer(LowRank(nn.Linear(4, 6), dropout=0.1).eval(), torch.zeros(2, 4))
    assert weight.shape == (6, 4) and bias.shape == (6,)


@pytest.mark.parametrize("dtype, slack", [(torch.float32, 1e-5), (torch.bfloat16, 0.02), (torch.float16, 2e-3)])
def test_the_weight_of_a_wrapped_layer_in_every_dtype(dtype, slack):
    """With a bias that is far larger than the weight."""
    base = nn.Linear(40, 30)
    nn.init.normal_(base.bias, std=3.0)
    head = LowRank(base).to(dtype)
    nn.init.normal_(head.lora_B.weight, std=0.1)
    right = (base.weight.double() + 2.0 * head.lora_B.weight.double() @ head.lora_A.weight.double()).detach()
    weight, bias = (x.detach() for x in output_layer(head, torch.zeros(2, 40, dtype=dtype)))
    assert weight.dtype == dtype and float((weight.double() - right).abs().max() / right.abs().max()) <= slack
    assert torch.equal(bias, base.bias)


def test_a_plain_layer_gives_its_own():
    head = nn.Linear(4, 6)
    weight, bias = output_layer(head, torch.zeros(2, 4))
    assert weight is head.weight and bias is head.bias
    assert output_layer(nn.Linear(4, 6, bias=False), torch.zeros(2, 4))[1] is None
