"""The curiosity of a trained agent as numbers and pictures: the records that every base algorithm
returns, the code that they share, and the page of `cclf inspect`."""
