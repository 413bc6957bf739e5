"""Scripts that make the model which ships with ggmlpy: corpus, tokenizer, training, export."""
