"""The Edge TPU: which operators its compiler takes, and how a graph keeps to them.

    rules     for one operator: taken, or the reason why not and what to do
    check     for a file: what runs where, where the compiler cuts the graph
    memory    parameters against the on-chip cache, and a split into segments
    rewrite   before quantisation: what the compiler does not know becomes what it knows

The rules are those that Google's operator table and the compiler's last release (16, runtime 14)
document; the compiler itself is no part of this package and is not needed for them.
"""
