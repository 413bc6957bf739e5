"""The server on many machines, by Ray: replicas of a model behind one address.

    client  ->  front.py    takes the request, and finds the beginning of its prompt
            ->  router.py   the replica that has seen most of that beginning (prefixes.py), unless
                            others have much less to do
            ->  replica.py  the application of `create_app`, which one process would run
    client  <-  its answer, as it comes

Ray Serve starts and ends replicas by how many requests they have. Needs the extra `ray`.
"""
