"""The LiteRT op table: ATen overload -> function that appends operators to a graph."""
