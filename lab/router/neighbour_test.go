package router

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

func TestTheRouterAnswersForItsAddressesAndLooksForNeighbours(t *testing.T) {
	pool := cone
	pool.Public = append(pool.Public, netip.MustParseAddr("203.0.113.4"))
	b := newBench(t, Config{NAT: pool})
	ask := func(who netip.Addr) []byte {
		other := &Router{legs: [2]leg{Outside: {Interface: Interface{MAC: macOf(faraway)}}}}
		return other.arp(Outside, 1, broadcast, who, gateway)
	}
	for a, answers := range map[string]bool{"203.0.113.3": true, "203.0.113.4": true, "203.0.113.5": false, "192.168.1.1": false} {
		b.Handle(b.now, Outside, ask(netip.MustParseAddr(a)))
		if got := len(b.sent[Outside]) == 1; got != answers {
			t.Errorf("asked for %s it answers: %v, want %v", a, got, answers)
		}
		b.sent = [2][][]byte{}
	}
	stranger := netip.MustParseAddr("203.0.113.9")
	b.send(Inside, datagram(protoUDP, at(host, 5000), at(stranger, 7000), 64, []byte("hello")))
	if f := b.sent[Outside]; len(f) != 1 || binary.BigEndian.Uint16(f[0][12:]) != typeARP {
		t.Fatalf("for a neighbour that is not known it sent %x", f)
	}
	b.sent = [2][][]byte{}
	// Asked again, until it answers.
	if next := b.Poll(b.now); !next.Equal(b.now.Add(solicitEvery)) {
		t.Fatalf("it wants to be woken at %v", next.Sub(b.now))
	}
	b.now = b.now.Add(solicitEvery)
	b.Poll(b.now)
	if len(b.sent[Outside]) != 1 {
		t.Fatal("it did not ask again")
	}
	b.sent = [2][][]byte{}
	them := &Router{legs: [2]leg{Outside: {Interface: Interface{MAC: macOf(stranger)}}}}
	b.Handle(b.now, Outside, them.arp(Outside, 2, MAC{2, 2}, public, stranger))
	if p := b.take(Outside); p.dst != at(stranger, 7000) {
		t.Errorf("what waited went to %v", p.dst)
	}
	// One that never answers: given up on, and counted.
	b.send(Inside, datagram(protoUDP, at(host, 5000), at(netip.MustParseAddr("203.0.113.10"), 7000), 64, nil))
	for range solicitations + 1 {
		b.now = b.now.Add(solicitEvery)
		b.Poll(b.now)
	}
	if b.Counts()[unresolvedVerdict] != 1 || len(b.sent[Outside]) != solicitations {
		t.Errorf("after %d requests the counts are %v", len(b.sent[Outside]), b.Counts())
	}
	if next := b.Poll(b.now); !next.IsZero() {
		t.Error("it still wants to be woken")
	}
}

func TestNeighbourDiscoveryWorksBothWays(t *testing.T) {
	b := newBench(t, Config{})
	other := newBench(t, Config{})
	stranger := netip.MustParseAddr("2001:db8::9")
	b.send(Inside, datagram(protoUDP, at(host6, 5000), at(stranger, 7000), 64, []byte("hello")))
	solicitation := b.sent[Outside][0]
	b.sent = [2][][]byte{}
	// The other one is the stranger.
	other.legs[Outside].Prefix6, other.legs[Outside].MAC = netip.PrefixFrom(stranger, 64), macOf(stranger)
	other.Handle(start, Outside, solicitation)
	if len(other.sent[Outside]) != 1 {
		t.Fatal("a solicitation was not answered")
	}
	b.Handle(b.now, Outside, other.sent[Outside][0])
	if p := b.take(Outside); p.dst != at(stranger, 7000) {
		t.Errorf("what waited went to %v", p.dst)
	}
	far := slices.Clone(solicitation)
	far[etherLen+7] = 254
	other.sent = [2][][]byte{}
	other.Handle(start, Outside, far)
	other.silent() // it came from behind a router
}
