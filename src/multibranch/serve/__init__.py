"""Serve: translation over HTTP, and a page to try a model on.

Read in this order: options (limits), engine (what translates), batching (many clients' texts in
common batches), service (one request: limits, queue, timeouts), streaming (documents), messages
(the shapes of requests and answers), mistakes (what is wrong with one, in a sentence), guard
(before every request), api (the endpoints), metrics, reference (the API as a page), running
(sockets and signals); page/ is the page itself.
"""
