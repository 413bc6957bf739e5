"""A device for tests, with memory that numpy cannot read and a queue that delays work.

It computes with another backend, by default the reference, so it runs every model. Mistakes that
usually have no effect on a real device raise errors: a read or write that did not wait for an
event, use of freed memory, host memory that changed before a copy had read it.
"""
