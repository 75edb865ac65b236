// Command weft is all of weft: coordination server, relay, STUN responder, node and command line.
package main

import (
	"os"

	"weft/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
