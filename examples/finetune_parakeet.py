"""Fine-tune a transducer of Hugging Face transformers (Parakeet RNN-T or TDT, Nemotron) with the loss of samplewise.

What a training script has to change is one line, `patch(model)`, before Trainer gets the model:

    before  model = AutoModelForRNNT.from_pretrained(name)
            trainer = Trainer(model=model, ...)
    after   model = patch(AutoModelForRNNT.from_pretrained(name))
            trainer = Trainer(model=model, ...)

Then training never holds the logits (batch, frames, labels + 1, classes). The rest of this script is what any fine-tune has: a
processor that turns recordings and texts into batches, and Trainer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from samplewise.asr.audio import read_audio
from samplewise.integrations.transformers import patch

RATE = 16000  # Hz
LETTERS = "abcdefgh "
EXAMPLES = """\
examples:
  python examples/finetune_parakeet.py
      a tiny model, made here, learns to write down tones: seconds, and nothing is downloaded
  python examples/finetune_parakeet.py --tdt
      the same with a token-and-duration transducer
  python examples/finetune_parakeet.py --model nvidia/parakeet-tdt-0.6b-v3 --data recordings --output tuned --bf16 \\
      --steps 2000 --batch-size 8 --accumulate 4 --learning-rate 1e-5
      a released model, on recordings of your own

DATA is a directory. Either it has a manifest.jsonl, each line {"audio": "name.wav", "text": "what is said"}, or sound files
(.wav, .flac, .ogg, .mp3) with a .txt of the same name beside each. Other rates than 16 kHz are resampled.
"""


class Tones(torch.utils.data.Dataset):
    """Texts of a few letters, each letter a tone of its own, a space silence; example i is always the same."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> dict:
        if not 0 <= i < self.size:
            raise IndexError(i)
        rng = np.random.default_rng(i)
        letters = rng.integers(len(LETTERS), size=rng.integers(2, 6))
        time = np.arange(RATE // 5) / RATE
        loud = [np.sin(2 * np.pi * 250 * 1.4**k * time) * (LETTERS[k] != " ") for k in letters]
        samples = np.concatenate(loud) + 0.01 * rng.standard_normal(len(time) * len(letters))
        return {"audio": (0.3 * samples).astype(np.float32), "text": "".join(LETTERS[k] for k in letters)}


class Recordings(torch.utils.data.Dataset):
    """Sound files of a directory, and their texts."""

    def __init__(self, folder: Path) -> None:
        self.rows = list(rows_of(folder))
        if not self.rows:
            raise SystemExit(f"{folder} has neither a manifest.jsonl nor sound files with a .txt of the same name")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict:
        path, text = self.rows[i]
        return {"audio": read_audio(path, RATE), "text": text}


def rows_of(folder: Path) -> Iterator[tuple[Path, str]]:
    manifest = folder / "manifest.jsonl"
    if manifest.exists():
        for line in manifest.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield folder / row["audio"], row["text"]
        return
    for path in sorted(folder.glob("**/*")):
        if path.suffix.lower() in (".wav", ".flac", ".ogg", ".mp3") and path.with_suffix(".txt").exists():
            yield path, path.with_suffix(".txt").read_text(encoding="utf-8").strip()


def write_recordings(folder: Path, rows: torch.utils.data.Dataset) -> None:
    """A directory as `Recordings` reads it."""
    folder.mkdir(parents=True)
    for i in range(len(rows)):
        soundfile.write(folder / f"{i}.wav", rows[i]["audio"], RATE)
        (folder / f"{i}.txt").write_text(rows[i]["text"], encoding="utf-8")


def tiny(kind: str) -> tuple[transformers.PreTrainedModel, transformers.ParakeetProcessor]:
    """A model that knows nothing, and a processor whose tokens are letters."""
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<pad>", *LETTERS, "<blank>"])}
    tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokens.decoder = decoders.Fuse()
    tokens.add_special_tokens(["<unk>", "<pad>", "<blank>"])
    tokenizer = transformers.ParakeetTokenizer(tokenizer_object=tokens, unk_token="<unk>", pad_token="<pad>")
    features = transformers.ParakeetFeatureExtractor(feature_size=32)
    processor = transformers.ParakeetProcessor(features, tokenizer, decoder_type=kind)
    encoder = transformers.ParakeetEncoderConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128, num_mel_bins=32,
        subsampling_conv_channels=16, layerdrop=0.0, initializer_range=0.15,
    )  # fmt: skip
    sizes = {
        "vocab_size": len(vocabulary), "blank_token_id": vocabulary["<blank>"], "pad_token_id": vocabulary["<pad>"],
        "decoder_hidden_size": 64, "num_decoder_layers": 1, "encoder_config": encoder,
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "tdt":
        model = transformers.ParakeetForTDT(transformers.ParakeetTDTConfig(**sizes))
    else:
        model = transformers.ParakeetForRNNT(transformers.ParakeetRNNTConfig(**sizes))
    model.generation_config.decoder_start_token_id = vocabulary["<blank>"]
    if kind == "tdt":  # columns of durations are no tokens
        model.generation_config.suppress_tokens = [len(vocabulary) + i for i in range(len(model.config.durations))]
    return model, processor


def load(name: str) -> tuple[transformers.PreTrainedModel, transformers.ProcessorMixin]:
    """Of a hub, or a directory."""
    has_durations = hasattr(transformers.AutoConfig.from_pretrained(name), "durations")
    kind = transformers.AutoModelForTDT if has_durations else transformers.AutoModelForRNNT
    return kind.from_pretrained(name), transformers.AutoProcessor.from_pretrained(name)


def collator(processor: transformers.ProcessorMixin):
    def collate(rows: list[dict]) -> dict:
        texts = [row["text"] for row in rows]
        batch = dict(processor([row["audio"] for row in rows], text=texts, sampling_rate=RATE))
        padding = batch["labels"] == processor.tokenizer.pad_token_id
        batch["labels"] = batch["labels"].masked_fill(padding, -100)  # which Trainer does not count among labels
        return batch

    return collate


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="name on the hub, or a directory; default: a tiny model, made here")
    parser.add_argument("--tdt", action="store_true", help="the tiny model is a token-and-duration transducer")
    parser.add_argument("--data", type=Path, help="a directory of recordings and texts, see below; default: tones")
    parser.add_argument("--output", type=Path, default=Path("runs/parakeet"), help="where the model goes (%(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="updates of the weights (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="utterances at a time (%(default)s)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches an update (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="for a released model 1e-5 or so (%(default)s)")
    parser.add_argument("--memory-budget", help='workspace of the loss, such as "512MiB"; default: a small one')
    parser.add_argument("--dropout", type=float, default=0.0, help="of the joint; 0.2 in NeMo's recipes (%(default)s)")
    parser.add_argument("--bf16", action="store_true", help="mixed precision")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> tuple[float, float]:
    """Train, save, and return the first and the last loss."""
    options = arguments(given)
    model, processor = load(options.model) if options.model else tiny("tdt" if options.tdt else "rnnt")
    data = Recordings(options.data) if options.data else Tones(256)

    patch(model, memory_budget=options.memory_budget, dropout=options.dropout)  # the line that is new

    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(options.output), max_steps=options.steps, learning_rate=options.learning_rate, bf16=options.bf16,
            per_device_train_batch_size=options.batch_size, gradient_accumulation_steps=options.accumulate,
            remove_unused_columns=False, prediction_loss_only=True, logging_steps=max(1, options.steps // 10),
            save_strategy="no", report_to="none", dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=data,
        data_collator=collator(processor),
    )  # fmt: skip
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    trainer.save_model()
    processor.save_pretrained(options.output)
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} nats a label")
    transcribe(model, processor, data)
    print(f"The model is in {options.output}")
    return losses[0], losses[-1]


@torch.no_grad()
def transcribe(model: transformers.PreTrainedModel, processor: transformers.ProcessorMixin, data, count: int = 2) -> None:
    """Print what is said in some recordings, and what the model hears."""
    model.eval()
    for i in range(min(count, len(data))):
        batch = processor([data[i]["audio"]], sampling_rate=RATE).to(model.device)
        most = batch["input_features"].shape[1]  # a step is a label or a frame of the encoder, which has an eighth of these
        found = model.generate(**batch, max_new_tokens=most).sequences
        print(f"said  {data[i]['text']!r}\nheard {processor.batch_decode(found, skip_special_tokens=True)[0]!r}")


if __name__ == "__main__":
    main()
