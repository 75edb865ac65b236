// Package vnet is the laboratory's NAT and the laboratory's internet: one piece of code that translates and
// filters as RFC 4787 says NATs do, in whichever of the ways it names, and a network in virtual time to put it
// into.
package vnet
