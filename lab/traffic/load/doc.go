// Package load is the clients of the lab: HTTP requests and long-lived
// connections at a fixed rate, each with a five-tuple of its own choosing.
//
//	fresh       one request on a connection of its own, closed by the server
//	keep-alive  request after request on the same connection
//	echo        a long-lived connection that sends numbered messages and checks
//	            that each comes back whole, in order
//
// What it guarantees:
//   - The rate does not follow the servers' speed: a slow answer delays no
//     other request, so it is seen and not hidden.
//   - Nothing is tried again. A connection that ends, stalls for longer than
//     the time limit or returns a wrong byte is broken, with the reason.
//   - Equal seeds give equal five-tuples; no five-tuple is used twice.
//
// It does not know load balancers or events; the demo asks it by Remote.
package load
