package vnet

import (
	"fmt"
	"net/netip"

	"weft"
)

// SetBlockUDP has the router drop everything, or no longer.
func (r *Router) SetBlockUDP(blocked bool) {
	r.nat.config.BlockUDP = blocked
	if r.nat6 != nil {
		r.nat6.config.BlockUDP = blocked
	}
}

// Readdress gives a router that translates other public addresses, as many as it had, and forgets its mappings: what a
// provider does to homes every night.
func (r *Router) Readdress() error {
	c := r.nat.config
	if c.Mapping == weft.NoNAT {
		return fmt.Errorf("%s cannot get another address: it translates nothing", r.Name())
	}
	if c.Allocation != weft.SequentialAllocation {
		c.Step = 0 // what NewNAT filled in
	}
	c.Seed++
	outside := r.plug.segment
	old := c.Public
	c.Public = make([]netip.Addr, len(old))
	for i := range c.Public {
		var err error
		if c.Public[i], err = outside.NewAddr(); err != nil {
			return fmt.Errorf("%s cannot get another address: %w", r.Name(), err)
		}
	}
	nat, err := NewNAT(c)
	if err != nil {
		return fmt.Errorf("%s cannot get another address: %w", r.Name(), err)
	}
	for _, a := range old {
		outside.leave(a)
	}
	for _, a := range c.Public {
		outside.add(r.plug, a)
	}
	r.nat = nat
	return nil
}
