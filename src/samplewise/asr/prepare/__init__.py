"""From corpora as their publishers hand them out to the manifests that the trainer reads."""
