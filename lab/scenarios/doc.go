// Package scenarios has only tests: of the whole lab, with real packets, in set-ups that the
// demo does not show. docs/lab.md lists them. They need root and the programs in bin/.
package scenarios
