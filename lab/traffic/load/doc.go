// Package load has the clients of the lab: HTTP requests and long-lived connections at a fixed
// rate, each with a five-tuple of its own choice.
//
//	fresh       one request on a connection of its own, closed by the server
//	keep-alive  request after request on the same connection
//	echo        a long-lived connection that sends numbered messages and checks
//	            that each comes back whole, in order
//
// Guarantees:
//   - The rate does not depend on the servers' speed: a slow answer delays no other request, so it
//     shows in the results.
//   - Nothing is tried again. A connection that ends, stalls for longer than the time limit or
//     returns a wrong byte is broken, and the reason is recorded.
//   - Equal seeds give equal five-tuples, and no five-tuple is used twice.
//
// It has no knowledge of load balancers or events; the demo uses it through Remote.
package load
