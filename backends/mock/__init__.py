"""A device for tests: memory that numpy cannot read, and a queue that runs late.

It has the reference's ops, so it runs every model. What a real device would forgive most of the
time is an error here: a read or write that did not wait for an event, memory used after it was
freed, host memory changed while a copy was still to read it.
"""
