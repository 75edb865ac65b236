package control

import (
	"context"
	"crypto/rand"
	"time"

	"weft/control/store"
)

// load makes the first snapshot of what is stored, and sets up the network where nothing is.
func (s *Server) load(ctx context.Context, c Config) error {
	st, err := c.Store.Load(ctx)
	if err != nil {
		return err
	}
	if err := setUp(ctx, c, &st); err != nil {
		return err
	}
	s.index = newIndex()
	t := &tx{s: s, now: time.Now()}
	t.snapshot = snapshot{
		// Every start begins a new epoch: what nodes say of themselves is not stored, so an old version means nothing.
		version: 1, logFrom: 1, revision: 1, net: st.Network, users: make(map[string]store.User),
		documents: make(map[string]store.Document), superseded: make(chan struct{}), law: newLaw(),
	}
	for _, u := range st.Users {
		t.users[u.Name] = u
		if !u.Expires.IsZero() {
			t.after = append(t.after, func() { s.userLater(u.Name, u.Expires) })
		}
	}
	for _, d := range st.Documents {
		t.documents[d.Name] = d
	}
	for _, k := range st.Keys {
		t.keys = t.keys.set(k.ID, &k)
		t.addSecret(k)
	}
	if c.Relay != nil {
		own := *c.Relay
		own.ID = embedded
		t.relays.embedded = &own
	}
	var alone []relayEntry
	for _, r := range st.Relays {
		alone = append(alone, relayEntry{Relay: r})
		t.setRelayMachine(r.Machine, r.ID)
	}
	t.relays = t.relays.with(alone)
	for _, v := range st.Revoked {
		t.revoked = t.revoked.set(uint32(v.Node), v.Until)
	}
	for _, n := range st.Nodes {
		e := &entry{Node: n, presence: presence{left: t.now}, born: t.version, json: new(lazyJSON)}
		t.settle(nil, e)
		if n.Ephemeral {
			t.after = append(t.after, func() { s.vanishLater(n.ID, EphemeralAfter) })
		}
		t.nodes = t.nodes.set(uint32(n.ID), e)
		t.indexNode(nil, e)
	}
	if err := t.loadResolving(); err != nil {
		return err
	}
	t.enact(t.lawNow())
	first := t.snapshot
	s.now.Store(&first)
	for _, f := range t.after {
		f()
	}
	return nil
}

// setUp gives a new network its name, counters and ranges, and an old one the ranges it is to have from now on.
func setUp(ctx context.Context, c Config, st *store.State) error {
	n := st.Network
	if n.Name == [8]byte{} {
		n = store.Network{IPv4: DefaultIPv4, IPv6: randomULA(), NextNode: firstNode, NextRelay: firstRelay, NextKey: firstKey}
		for n.Name == [8]byte{} {
			_, _ = rand.Read(n.Name[:]) // never fails (crypto/rand)
		}
	}
	if c.IPv4.IsValid() {
		n.IPv4 = c.IPv4
	}
	if c.IPv6.IsValid() {
		n.IPv6 = c.IPv6
	}
	if n.Name == st.Network.Name && n.IPv4 == st.Network.IPv4 && n.IPv6 == st.Network.IPv6 {
		return nil
	}
	if err := checkRanges(n.IPv4, n.IPv6); err != nil {
		return err
	}
	if err := outside(st.Nodes, n.IPv4, n.IPv6); err != nil {
		return err
	}
	if err := c.Store.Apply(ctx, store.Batch{store.SetNetwork(n)}); err != nil {
		return err
	}
	st.Network = n
	return nil
}
