package path

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

// takesTCP is the list with all of it taking TCP.
func takesTCP(list []weft.Candidate) []weft.Candidate {
	list = slices.Clone(list)
	for i := range list {
		list[i].TCP = true
	}
	return list
}

func tcpVia(s string) weft.Via { return weft.TCPVia(0, addr(s)) }

const peerAt = "203.0.113.9:41641"

// tcpRig is an agent that may use TCP, and has heard that the peer takes it.
func tcpRig(t *testing.T) *rig {
	r := newRig(t)
	r.SetTCP(r.now, TCP{Allowed: true})
	r.hears(takesTCP(candidates(weft.Host, peerAt))...)
	return r
}

// hears has the peer tell its candidates through a relay.
func (r *rig) hears(list ...weft.Candidate) {
	r.handle(relayUDP, wire.Candidates{Session: 9, Seq: r.exchange.last + 1, List: list})
}

// until polls until something is wanted of connections, and returns when.
func (r *rig) until(d time.Duration, rtts map[weft.Via]time.Duration) (dials []Dial, after time.Duration) {
	began := r.now
	for r.now.Sub(began) < d {
		r.play(10*time.Millisecond, rtts)
		if len(r.dials) > 0 {
			dials, r.dials = r.dials, nil
			return dials, r.now.Sub(began)
		}
	}
	return nil, d
}

// up has a connection be there.
func (r *rig) up(list ...Connection) { r.SetConnections(r.now, list) }

func TestTCPIsTriedWhereUDPDoesNotGetThroughAndUsed(t *testing.T) {
	r := tcpRig(t)
	relays := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond, relayTCP: 50 * time.Millisecond}
	dials, after := r.until(time.Minute, relays)
	if len(dials) != 1 || !slices.Equal(dials[0].Addrs, []netip.AddrPort{addr(peerAt)}) || dials[0].Link != 0 || dials[0].Far != 0 {
		t.Fatalf("dialed is %+v", dials)
	}
	if after < tcpPatience || after > tcpPatience+100*time.Millisecond {
		t.Errorf("it was tried after %v", after)
	}
	if d, _ := r.until(30*time.Second, relays); len(d) > 0 {
		t.Fatalf("while that is under way, %+v is dialed", d)
	}
	via := tcpVia(peerAt)
	r.up(Connection{Via: via, Dialed: true})
	r.Dialed(r.now, 0, 0)
	if r.Selected() != relayUDP {
		t.Errorf("%v is used before it answered", r.Selected())
	}
	relays[via] = 20 * time.Millisecond
	r.play(100*time.Millisecond, relays)
	if s := r.Snapshot(r.now); s.Selected != via || !strings.HasPrefix(s.Reason, "direct-tcp path answered in 20ms") {
		t.Errorf("%v is used: %s", s.Selected, s.Reason)
	}
	if d, _ := r.until(10*time.Minute, relays); len(d) > 0 {
		t.Errorf("with a connection, %+v is dialed", d)
	}
	if r.Selected() != via {
		t.Errorf("after ten quiet minutes %v is used", r.Selected())
	}
}

func TestNoTCPIsTriedWhereItIsOfNoUse(t *testing.T) {
	all := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond, direct(peerAt): 20 * time.Millisecond}
	relays := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond}
	plain := candidates(weft.Host, peerAt)
	for name, c := range map[string]struct {
		rtts map[weft.Via]time.Duration
		use  TCP
		list []weft.Candidate
	}{
		"UDP gets through":           {all, TCP{Allowed: true}, takesTCP(plain)},
		"the peer takes none":        {relays, TCP{Allowed: true}, plain},
		"it is not allowed":          {relays, TCP{}, takesTCP(plain)},
		"it is not allowed, instead": {relays, TCP{All: true}, takesTCP(plain)},
		"its address is our own":     {relays, TCP{Allowed: true}, takesTCP(candidates(weft.Host, "192.168.1.2:41641"))},
	} {
		r := newRig(t)
		r.SetTCP(r.now, c.use)
		r.hears(c.list...)
		if d, _ := r.until(20*time.Minute, c.rtts); len(d) > 0 {
			t.Errorf("%s: %+v is dialed", name, d)
		}
	}
}

func TestWhoDoesNotLeadLetsTheOtherConnectFirst(t *testing.T) {
	for _, leads := range []bool{false, true} {
		r := tcpRig(t)
		r.cfg.Leads = leads
		r.SetLocal(r.now, takesTCP(candidates(weft.Host, "192.168.1.2:41641")))
		_, after := r.until(time.Minute, nil)
		want := tcpPatience
		if !leads {
			want += tcpGiveWay
		}
		if after < want || after > want+100*time.Millisecond {
			t.Errorf("leading is %v: it was tried after %v", leads, after)
		}
	}
}

func TestWhatFailsIsTriedMoreAndMoreSeldomAndAtOnceWhenSomethingChanges(t *testing.T) {
	r := tcpRig(t)
	relays := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond}
	r.until(time.Minute, relays)
	want := tcpFirst
	for range 12 {
		r.Dialed(r.now, 0, 0)
		_, after := r.until(time.Hour, relays)
		if after < want || after > want+100*time.Millisecond {
			t.Fatalf("it was tried after %v, not %v", after, want)
		}
		want = min(2*want, tcpLast)
	}
	r.Dialed(r.now, 0, 0)
	r.NetworkChanged(r.now)
	if _, after := r.until(time.Hour, relays); after > tcpPatience+100*time.Millisecond {
		t.Errorf("in another network it was tried after %v", after)
	}
}

func TestUDPTakesOverFromTCPWhichIsClosedLater(t *testing.T) {
	for _, dialed := range []bool{true, false} {
		r := tcpRig(t)
		rtts := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond}
		r.until(time.Minute, rtts)
		via := tcpVia(peerAt)
		r.up(Connection{Via: via, Dialed: dialed})
		r.Dialed(r.now, 0, 0)
		rtts[via] = 20 * time.Millisecond
		r.play(time.Second, rtts)
		if r.Selected() != via {
			t.Fatalf("%v is used", r.Selected())
		}
		rtts[direct(peerAt)] = 25 * time.Millisecond
		r.Observe(r.now, []Traffic{{Via: via, TxPackets: 1, TxBytes: 1000}})
		r.play(90*time.Second, rtts)
		if r.Selected() != direct(peerAt) {
			t.Fatalf("UDP works again, and %v is used", r.Selected())
		}
		r.play(tcpLinger, rtts)
		if dialed != slices.Contains(r.hung, via) {
			t.Errorf("dialed here is %v, and closed is %v", dialed, r.hung)
		}
	}
}

func TestASilentConnectionIsLeftClosedAndMadeAnew(t *testing.T) {
	r := tcpRig(t)
	rtts := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond}
	r.until(time.Minute, rtts)
	via := tcpVia(peerAt)
	r.up(Connection{Via: via}) // the peer's
	r.Dialed(r.now, 0, 0)
	rtts[via] = 20 * time.Millisecond
	r.play(time.Second, rtts)
	delete(rtts, via)
	began := r.now
	for i := range 100 { // the relay works, and says that nothing comes
		r.Observe(r.now, []Traffic{{Via: r.Selected(), TxPackets: uint64(10 * (i + 1)), TxBytes: 1000}})
		r.play(50*time.Millisecond, rtts)
		if len(r.hung) > 0 {
			break
		}
	}
	if !slices.Equal(r.hung, []weft.Via{via}) || r.now.Sub(began) > 3*time.Second {
		t.Fatalf("closed is %v, after %v", r.hung, r.now.Sub(began))
	}
	if r.Selected() != relayUDP {
		t.Errorf("%v is used", r.Selected())
	}
	r.hung = nil
	r.play(100*time.Millisecond, rtts)
	if len(r.hung) > 0 {
		t.Errorf("it is to be closed twice")
	}
	r.up()
	if d, after := r.until(time.Minute, rtts); len(d) != 1 || after > tcpPatience+tcpFirst+tcpGiveWay {
		t.Errorf("after %v dialed is %+v", after, d)
	}
	r.up(Connection{Via: via, Dialed: true}) // the same address: another connection
	rtts[via] = 20 * time.Millisecond
	r.play(time.Second, rtts)
	if r.Selected() != via {
		t.Errorf("made anew, and %v is used", r.Selected())
	}
}

func TestNothingIsTakenByAConnectionThatIsNotKnown(t *testing.T) {
	r := tcpRig(t)
	if out := r.handle(tcpVia(peerAt), wire.Ping{Path: 3}); len(pings(out, tcpVia(peerAt))) > 0 || r.find(tcpVia(peerAt)) != nil {
		t.Error("it is a way")
	}
	for _, x := range r.poll() {
		if _, ok := x.Message.(wire.Pong); ok {
			t.Error("it was answered")
		}
	}
	r.up(Connection{Via: direct(peerAt)}, Connection{Via: relayUDP}, Connection{})
	if n := len(r.connections.up); n != 0 {
		t.Errorf("%d things that are no connections are some", n)
	}
}

func TestALinkThatIsSetToTCPHasNoDirectWayOverUDP(t *testing.T) {
	r := newRig(t)
	r.SetTCP(r.now, TCP{Allowed: true, All: true})
	r.hears(takesTCP(candidates(weft.Host, peerAt))...)
	rtts := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond, direct(peerAt): 20 * time.Millisecond}
	if d, after := r.until(time.Minute, rtts); len(d) != 1 || after > 100*time.Millisecond {
		t.Fatalf("after %v dialed is %+v", after, d)
	}
	via := tcpVia(peerAt)
	r.up(Connection{Via: via, Dialed: true})
	rtts[via] = 20 * time.Millisecond
	r.handle(direct(peerAt), wire.Ping{Path: 3})
	r.play(5*time.Minute, rtts)
	for _, x := range r.sent {
		if x.Via.Method == weft.Direct {
			t.Fatalf("sent was %+v", x)
		}
	}
	if r.Selected() != via || len(r.hung) > 0 {
		t.Errorf("%v is used, and closed is %v", r.Selected(), r.hung)
	}
	// And when it is taken back, UDP is found.
	r.SetTCP(r.now, TCP{Allowed: true})
	r.play(5*time.Second, rtts)
	if r.Selected() != direct(peerAt) {
		t.Errorf("%v is used", r.Selected())
	}
}

func TestNoMoreConnectionsAreMadeThanGiveEachLinkOneDirectWay(t *testing.T) {
	const v4 = "203.0.113."
	r := newRig(t)
	r.SetTCP(r.now, TCP{Allowed: true})
	r.SetLocal(r.now, []weft.Candidate{
		{Addr: addr("192.168.1.2:41641"), Kind: weft.Host, Link: 1}, {Addr: addr("192.168.2.2:41641"), Kind: weft.Host, Link: 2},
		{Addr: addr("192.168.3.2:41641"), Kind: weft.Host},
	})
	theirs := []weft.Candidate{
		{Addr: addr(v4 + "1:41641"), Kind: weft.Host, Link: 1, TCP: true}, {Addr: addr(v4 + "2:41641"), Kind: weft.Host, Link: 2, TCP: true},
		{Addr: addr(v4 + "3:41641"), Kind: weft.Host, TCP: true},
	}
	r.hears(theirs...)
	// By the first link of both, and of the peer's second, UDP works; nothing does by our second.
	rtts := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond}
	for _, c := range theirs[:2] {
		rtts[weft.DirectVia(1, c.Addr)] = 20 * time.Millisecond
	}
	dials, _ := r.until(time.Minute, rtts)
	if len(dials) != 1 || dials[0].Link != 2 || dials[0].Far != 1 {
		t.Fatalf("dialed is %+v", dials)
	}
	r.Dialed(r.now, 2, 1) // in vain: the other is tried
	if dials, _ = r.until(time.Second, rtts); len(dials) != 1 || dials[0].Link != 2 || dials[0].Far != 2 {
		t.Fatalf("dialed is %+v", dials)
	}
	via := weft.TCPVia(2, theirs[1].Addr)
	r.up(Connection{Via: via, Far: 2, Dialed: true})
	r.Dialed(r.now, 2, 2)
	rtts[via] = 30 * time.Millisecond
	if d, _ := r.until(20*time.Minute, rtts); len(d) > 0 {
		t.Errorf("each link has a direct way, and %+v is dialed", d)
	}
	if slices.Contains(r.hung, via) {
		t.Error("the one of a link that has no other is closed")
	}
}

func TestADialHasNoMoreAddressesThanAConnectionIsWorth(t *testing.T) {
	r := newRig(t)
	r.SetTCP(r.now, TCP{Allowed: true})
	r.SetLocal(r.now, candidates(weft.Host, "192.168.1.2:41641", "[2001:db8::2]:41641"))
	var many []weft.Candidate
	for i := range wire.MaxCandidates - 1 {
		many = append(many, weft.Candidate{Addr: addrPort(i + 1), Kind: weft.Host, TCP: true})
	}
	six := weft.Candidate{Addr: addr("[2001:db8::9]:41641"), Kind: weft.Host, TCP: true}
	r.hears(append(many[:6:6], six)...)
	r.SetRemote(r.now, many)
	d, _ := r.until(time.Minute, nil)
	if len(d) != 1 || len(d[0].Addrs) != MaxDialed || d[0].Addrs[0] != six.Addr {
		t.Errorf("dialed is %+v", d)
	}
}
