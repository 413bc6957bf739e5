"""Scripts that make the small model which ships with ggmlpy: corpus, tokenizer, training, export."""
