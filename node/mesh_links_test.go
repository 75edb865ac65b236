package node

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/engine/underlay"
	"weft/gather"
	"weft/host"
	"weft/key"
)

func TestALinkKeepsItsNumberWhileTheDaemonRuns(t *testing.T) {
	var l links
	one, two := l.number("eth0"), l.number("wlan0")
	if one == 0 || two == 0 || one == two || l.number("eth0") != one || l.number("wlan0") != two {
		t.Errorf("%d and %d", one, two)
	}
}

func TestLinksTakeTurns(t *testing.T) {
	l := links{list: []*meshLink{{Link: underlay.Link{ID: 3}}, {Link: underlay.Link{ID: 1}}}}
	for after, want := range map[weft.LinkID]weft.LinkID{3: 1, 1: 3, 0: 3, 7: 3} {
		if got := l.next(after); got != want {
			t.Errorf("after %d comes %d, not %d", after, got, want)
		}
	}
	if got := new(links).next(5); got != 0 {
		t.Errorf("of none comes %d", got)
	}
}

// named gives a mesh the loopback interface as its only link, and another that is not there.
func named(t *testing.T, me *mesh) []host.Interface {
	t.Helper()
	me.links.named, me.links.ctx = []string{"nosuch", "lo"}, t.Context()
	ifaces, err := host.Interfaces()
	if err != nil {
		t.Skipf("no interfaces are known: %v", err)
	}
	me.lookAtLinks(time.Now(), ifaces)
	if len(me.links.list) != 1 {
		t.Skipf("no socket on the loopback interface: %v", me.problems)
	}
	return ifaces
}

func TestALinkHasItsOwnCandidatesNATAndSockets(t *testing.T) {
	me, p := aMesh(t, stunServer(t, true))
	me.lookAtLinks(time.Now(), named(t, me)) // twice is as good as once
	l := me.links.list[0]
	if l.Device != "lo" || l.ID == 0 || l.Index == 0 || me.engine.LinkPort(l.ID) == 0 || me.device(l.ID) != "lo" {
		t.Fatalf("the link is %+v", l.Link)
	}
	if say := me.problems["links named"]; !strings.Contains(say, "nosuch") {
		t.Errorf("problems are %q", me.problems)
	}
	// STUN goes by the link, and comes back by it.
	l.reflexive.SetServers(time.Now(), me.stunServers())
	deadline := time.After(20 * time.Second)
	for answered := false; !answered; {
		l.reflexive.Poll(time.Now(), func(to netip.AddrPort, packet []byte) { me.engine.WriteTo(l.ID, to, packet) })
		select {
		case f := <-me.frames:
			if f.link != l.ID {
				t.Fatalf("it came by link %d", f.link)
			}
			answered, _ = l.reflexive.Handle(time.Now(), f.b[:f.n], f.from)
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatal("no answer by the link")
		}
	}
	me.setNAT(time.Now(), l, gather.NATs{IPv4: weft.NAT{Mapping: weft.AddressDependentMapping}})
	if own := p.agent.Snapshot(time.Now()).OwnNAT; own.Mapping != weft.AddressDependentMapping {
		t.Errorf("the agent knows %v", own)
	}
	// Sockets of its own, which a peer needs, leave by it too.
	opened, _, err := me.engine.OpenSocketsOn(l.ID, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	me.spares.on[opened[0]] = l.ID
	if me.device(opened[0]) != "lo" {
		t.Errorf("the socket is on %q", me.device(opened[0]))
	}
	if s := me.linkStatus(); len(s) != 1 || s[0].Interface != "lo" || s[0].NAT.Mapping != weft.AddressDependentMapping {
		t.Errorf("status is %+v", s)
	}
}

func TestWithoutLinksThereIsTheOneThatTheRoutesSay(t *testing.T) {
	me, _ := aMesh(t, stunServer(t, false))
	me.links.ctx = t.Context()
	if me.lookAtLinks(time.Now(), nil) || len(me.links.list) != 1 || me.links.list[0].ID != 0 || me.linkStatus() != nil {
		t.Errorf("links are %+v", me.links.list)
	}
	if me.device(0) != "" || me.relayLinkID() != 0 {
		t.Errorf("link 0 is %q", me.device(0))
	}
}

func TestARelayIsBoundByALinkThatThereIs(t *testing.T) {
	me, _ := aMesh(t, stunServer(t, false))
	r := me.relays[1]
	r.relay.Key = key.NewPrivate[key.Relay]().Public()
	me.bind(time.Now(), r, 0)
	named(t, me)
	if l := me.links.list[0]; r.link != l.ID || r.binding == nil {
		t.Errorf("it is bound by %d, not %d", r.link, l.ID)
	}
}

func TestARelayThatDoesNotAnswerIsTriedByAllLinksAndAtAllAddressesMoreAndMoreSeldom(t *testing.T) {
	me, _ := aMesh(t, stunServer(t, false))
	me.links.list = []*meshLink{{Link: underlay.Link{ID: 1, Device: "a"}}, {Link: underlay.Link{ID: 2, Device: "b"}}}
	one, two := netip.MustParseAddrPort("192.0.2.1:3478"), netip.MustParseAddrPort("[2001:db8::1]:3478")
	r := me.relays[1]
	r.relay.Key, r.addrs = key.NewPrivate[key.Relay]().Public(), []netip.AddrPort{one, two}
	now := time.Now()
	me.bind(now, r, 1)
	type try struct {
		link weft.LinkID
		at   netip.AddrPort
	}
	var tries []try
	var gaps []time.Duration
	last := now
	for range 9 {
		for me.elsewhere(now, r).After(now) {
			now = now.Add(time.Second)
		}
		tries = append(tries, try{r.link, r.addrs[0]})
		gaps = append(gaps, now.Sub(last))
		last = now
	}
	if want := []try{{2, one}, {1, two}, {2, two}, {1, one}}; !slices.Equal(tries[:4], want) {
		t.Errorf("tries are %v, want %v", tries, want)
	}
	if gaps[0] != 0 || gaps[1] != 0 || gaps[2] != lapPause || gaps[4] != 2*lapPause || gaps[8] != 4*lapPause {
		t.Errorf("gaps are %v", gaps)
	}
	r.recheck(now)
	if at := me.elsewhere(now, r); at != now {
		t.Errorf("after a change of the network it is tried at %v", at.Sub(now))
	}
	me.links.list, r.addrs = me.links.list[:1], r.addrs[:1]
	if at := me.elsewhere(now, r); !at.IsZero() {
		t.Errorf("there is nothing else to try, and yet at %v", at.Sub(now))
	}
}
