"""The making and measuring of the book's own base models."""
