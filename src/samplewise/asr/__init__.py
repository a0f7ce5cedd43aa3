"""A small speech recogniser trained with `samplewise.transducer_loss`, from a YAML recipe to a WER.

One file a role: `recipe` (what to do), `sources` and `corpus` (recordings and texts), `audio` and `features`,
`tokenizer`, `examples` (checked, batched), `model`, `decode`, `train`, `evaluate`. Needs the `train` extra:
`pip install samplewise[train]`.
"""
