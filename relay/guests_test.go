package relay

import (
	"testing"
	"time"

	"weft"
	"weft/key"
	"weft/wire"
)

var guestNetworkName = [8]byte{'g', 'u', 'e', 's', 't'}

// guest is a node of a network that is not the relay's own.
func (w *world) guest(id weft.NodeID, issuer key.SigningPrivate, network [8]byte) *member {
	m := &member{w: w, id: id, key: key.NewPrivate[key.Node]()}
	m.ticket = wire.SignTicket(nil, wire.Ticket{Node: id, Network: network, Key: m.key.Public(), NotAfter: w.relay.clock().Add(time.Hour)}, issuer)
	return m
}

// admitted verifies a member's ticket and puts it into the table, as a Bind does.
func (m *member) admitted() (*node, wire.Refusal) {
	a, why := m.w.relay.examine(m.ticket, func(key.Box) bool { return true })
	if why != wire.RefusedNot {
		return nil, why
	}
	m.w.relay.mu.Lock()
	defer m.w.relay.mu.Unlock()
	return m.w.relay.admit(a)
}

func TestNobodyIsAGuestUnlessTheRelayHasGuests(t *testing.T) {
	issuer := key.NewSigning()
	closed := newRelay(t, nil)
	if _, why := closed.guest(1, issuer, guestNetworkName).admitted(); why != wire.RefusedForged {
		t.Errorf("a relay without guests says of one: %v", why)
	}
	open := newRelay(t, func(c *Config) { c.Guests = Guests{Issuer: issuer.Public()} })
	if n, why := open.guest(1, issuer, guestNetworkName).admitted(); why != wire.RefusedNot || n.guest == nil {
		t.Errorf("a guest is refused: %v", why)
	}
	if n, why := open.member(1).admitted(); why != wire.RefusedNot || n.guest != nil {
		t.Errorf("a member: %v, or it is a guest", why)
	}
	if _, why := open.guest(1, key.NewSigning(), guestNetworkName).admitted(); why != wire.RefusedForged {
		t.Errorf("a stranger: %v", why)
	}
	// A guest cannot pass for a node of the relay's own network, nor the other way round.
	if _, why := open.guest(1, issuer, testNetwork).admitted(); why != wire.RefusedForged {
		t.Errorf("a guest with a ticket for the relay's own network: %v", why)
	}
	// A relay beside a rendezvous alone has no network of its own.
	only := newRelay(t, func(c *Config) { c.Issuer, c.Guests = key.SigningPublic{}, Guests{Issuer: issuer.Public()} })
	if _, why := only.guest(1, issuer, guestNetworkName).admitted(); why != wire.RefusedNot {
		t.Errorf("a relay of guests only says of one: %v", why)
	}
}

func TestWhatTheCoordinatorRevokesOrReplacesDoesNotTouchGuests(t *testing.T) {
	issuer := key.NewSigning()
	w := newRelay(t, func(c *Config) { c.Guests = Guests{Issuer: issuer.Public()} })
	g, m := w.guest(7, issuer, guestNetworkName), w.member(7)
	for _, x := range []*member{g, m} {
		if _, why := x.admitted(); why != wire.RefusedNot {
			t.Fatal(why)
		}
	}
	w.relay.SetRevoked([]weft.NodeID{7})
	if got := w.relay.Stats().Nodes; got != 1 {
		t.Errorf("with node 7 revoked there are %d nodes", got)
	}
	if _, why := g.admitted(); why != wire.RefusedNot {
		t.Errorf("the guest of that number: %v", why)
	}
	if _, why := m.admitted(); why != wire.RefusedRevoked {
		t.Errorf("the revoked node: %v", why)
	}
	w.relay.SetIssuer(key.NewSigning().Public())
	if got := w.relay.Stats().Nodes; got != 1 {
		t.Errorf("with another issuer there are %d nodes", got)
	}
}

func TestGuestsAreCountedAndForgotten(t *testing.T) {
	issuer := key.NewSigning()
	w := newRelay(t, func(c *Config) { c.Guests = Guests{Issuer: issuer.Public(), Nodes: 2} })
	a, _ := w.guest(1, issuer, guestNetworkName).admitted()
	if _, why := w.guest(2, issuer, guestNetworkName).admitted(); why != wire.RefusedNot {
		t.Fatal(why)
	}
	if _, why := w.guest(3, issuer, [8]byte{1}).admitted(); why != wire.RefusedFull {
		t.Errorf("a third of two guests: %v", why)
	}
	if _, why := w.member(3).admitted(); why != wire.RefusedNot {
		t.Errorf("a member, where there are as many guests as may be: %v", why)
	}
	w.relay.mu.Lock()
	w.relay.forget(a)
	w.relay.forget(a) // once is enough
	w.relay.mu.Unlock()
	if _, why := w.guest(3, issuer, [8]byte{1}).admitted(); why != wire.RefusedNot {
		t.Errorf("with one gone: %v", why)
	}
	if b := &w.relay.guests; b.nodes != 2 || len(b.networks) != 2 {
		t.Errorf("%d guests in %d networks", b.nodes, len(b.networks))
	}
}

func TestWhatIsForwardedForGuestsIsBounded(t *testing.T) {
	const rate = 1_000_000 // bytes a second
	issuer := key.NewSigning()
	w := newRelay(t, func(c *Config) {
		c.Guests = Guests{Issuer: issuer.Public(), NetworkRate: rate, TotalRate: 3 * rate / 2}
	})
	admit := func(m *member) *node {
		n, why := m.admitted()
		if why != wire.RefusedNot {
			t.Fatal(why)
		}
		return n
	}
	a, b := admit(w.guest(1, issuer, guestNetworkName)), admit(w.guest(2, issuer, guestNetworkName))
	other, member := admit(w.guest(1, issuer, [8]byte{1})), admit(w.member(1))
	send := func(n *node, at time.Duration) (let int) {
		for range 20_000 {
			if !w.relay.limited(n, at, 1000, 1) {
				let += 1000
			}
		}
		return let
	}
	const burst = int(rate * int(guestBurst) / int(time.Second))
	if got := send(a, 0); got < burst || got > burst+2000 {
		t.Errorf("at once %d bytes go through, not %d", got, burst)
	}
	if got := send(b, 0); got != 0 { // its network has had it
		t.Errorf("another node of that network has %d more", got)
	}
	if got := send(other, 0); got == 0 || got > burst {
		t.Errorf("another network has %d bytes of what is left for all", got)
	}
	if got := send(member, 0); got != 20_000_000 {
		t.Errorf("of the relay's own network %d bytes go through", got)
	}
	total := 0
	for at := time.Millisecond; at <= 10*time.Second; at += 100 * time.Millisecond {
		total += send(a, at)
	}
	if total < 9*rate || total > 10*rate+burst {
		t.Errorf("in ten seconds %d bytes go through, at %d a second", total, rate)
	}
	if drops := w.relay.Stats().Drops[DropGuest]; drops == 0 {
		t.Error("what is dropped is not counted")
	}
}

// TestGuestsReachEachOtherAndNobodyElse sends by sockets.
func TestGuestsReachEachOtherAndNobodyElse(t *testing.T) {
	issuer := key.NewSigning()
	w := newRelay(t, func(c *Config) { c.Guests = Guests{Issuer: issuer.Public(), NetworkRate: 1 << 30, TotalRate: 1 << 30} }).serveUDP(nil)
	a, b := w.guest(1, issuer, guestNetworkName).udp().bind(), w.guest(2, issuer, guestNetworkName).udp().bind()
	m, other := w.member(2).udp().bind(), w.guest(2, issuer, [8]byte{1}).udp().bind()
	a.send(2, "to the guest")
	b.want(1, "to the guest")
	for _, n := range []*udpNode{m, other} {
		n.wantNothing()
	}
}
