package engine

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/key"
	"weft/wireguard"
)

// returningTUN is a device into which the kernel's routes lead.
type returningTUN struct {
	*memTUN
	back netip.Addr
}

func (r returningTUN) Returns(to netip.Addr) bool { return to == r.back }

func TestAPeerIsNotFollowedIntoItsOwnTunnel(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.1")
	for _, c := range []struct {
		name    string
		back    netip.Addr
		allowed netip.Addr
		follows bool
	}{
		{"an address that leads to the peer itself", local, local, false},
		{"an address that leads to the peer by its prefix, and elsewhere by the kernel's routes", netip.Addr{}, local, true},
		{"an address that leads to another peer", local, netip.MustParseAddr("127.0.0.2"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := start(t, 1)
			b := &node{id: 2, key: key.NewPrivate[key.Node](), tun: newMemTUN(), seen: &recorder{}}
			e, err := New(Config{Key: b.key, Self: b.id, Device: returningTUN{b.tun, c.back}, Handler: b.seen, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			b.Engine = e
			t.Cleanup(func() { e.Close() })
			if err := e.Up(); err != nil {
				t.Fatal(err)
			}
			plain := a.peer()
			plain.Plain = true
			plain.Allowed = append(plain.Allowed, netip.PrefixFrom(c.allowed, 32))
			mustSetPeers(t, a, b.peer())
			mustSetPeers(t, b, plain)
			a.SetRoute(b.id, weft.DirectVia(0, b.addr()))
			exchange(t, a, b, 1)
			if s := b.States()[0]; s.Endpoint.IsValid() != c.follows {
				t.Errorf("it is sent to at %v", s.Endpoint)
			}
		})
	}
}

func TestAPeerIsFollowedWhereManyNotesWait(t *testing.T) {
	n, from := start(t, 1), netip.MustParseAddrPort("192.0.2.1:51820")
	mustSetPeers(t, n, Peer{ID: 2, Key: key.NewPrivate[key.Node]().Public(), Plain: true})
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.control.do(func(now time.Time) {
			p := n.Engine.peer(2)
			for len(n.control.posts) < cap(n.control.posts) {
				n.control.posts <- post{peer: p, what: routed}
			}
			s := &wireguard.Session{Peer: p.wg, Local: 7, Began: now}
			n.control.change(now, wireguard.Change{Peer: p.wg, What: wireguard.Began, Session: s}, &message{from: from})
		})
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("who takes notes waits for room for one")
	}
	if s := n.States()[0]; s.Endpoint != from {
		t.Errorf("it is sent to at %v", s.Endpoint)
	}
}
