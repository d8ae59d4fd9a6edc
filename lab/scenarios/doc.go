// Package scenarios has only tests: the lab as a whole, with real packets, in
// shapes that the demo does not show. docs/lab.md lists them. They need root and
// the programs in bin/.
package scenarios
