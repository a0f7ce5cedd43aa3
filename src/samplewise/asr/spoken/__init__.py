"""`samplewise synthesise`: hours of speech with a large vocabulary, read by synthetic voices, where no corpus is at hand."""
