"""Dense search: encoders, vector indexes and the retriever over them."""
