package relay

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"weft/host"
	"weft/wire"
)

func TestOneAddressCannotHaveManyTicketsVerified(t *testing.T) {
	w := newRelay(t, nil)
	socket, err := host.NewUDPSocket(listenUDP(t, "udp4", "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	l := w.relay.newLoop(socket, nil)
	sink := listenUDP(t, "udp4", "127.0.0.1:0").LocalAddr().(*net.UDPAddr).AddrPort()
	m := w.member(1)
	box, _ := wire.RelayBox(m.key, w.desc.Key)
	l.begin()
	for range 10 * maxPerSource { // nobody verifies here: what waits is what would be
		b := wire.AppendBind(nil, wire.Bind{Ticket: m.ticket, Cookie: w.relay.cookies.make(sink, l.now)}, box)
		l.take(&host.UDPRead{Data: b, Segment: len(b), From: sink})
	}
	if n := len(w.relay.slow.waiting); n != maxPerSource {
		t.Errorf("%d wait to be verified", n)
	}
	for i := range 2 * maxWaiting {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1)
		b := wire.AppendBind(nil, wire.Bind{Ticket: m.ticket, Cookie: w.relay.cookies.make(from, l.now)}, box)
		l.take(&host.UDPRead{Data: b, Segment: len(b), From: from})
	}
	if n := len(w.relay.slow.waiting); n != maxWaiting {
		t.Errorf("%d wait to be verified", n)
	}
	if w.relay.Stats().Drops[DropBusy] == 0 {
		t.Error("nothing is counted")
	}
}

func TestACookieIsGoodForItsAddressAndItsTime(t *testing.T) {
	c := newCookies([16]byte{1})
	at, now := netip.MustParseAddrPort("192.0.2.1:1000"), 5*time.Minute
	cookie := c.make(at, now)
	if issued, ok := c.check(cookie, at, now+time.Second); !ok || issued != uint64(now/cookieTicks) {
		t.Errorf("%d, %v", issued, ok)
	}
	for name, bad := range map[string]func() bool{
		"another address": func() bool { _, ok := c.check(cookie, netip.MustParseAddrPort("192.0.2.2:1000"), now); return ok },
		"another port":    func() bool { _, ok := c.check(cookie, netip.MustParseAddrPort("192.0.2.1:1001"), now); return ok },
		"too old":         func() bool { _, ok := c.check(cookie, at, now+cookieLife+time.Second); return ok },
		"another secret":  func() bool { _, ok := newCookies([16]byte{2}).check(cookie, at, now); return ok },
		"another time": func() bool {
			cookie := cookie
			cookie[cookieTime-1]++
			_, ok := c.check(cookie, at, now)
			return ok
		},
		"nothing": func() bool { _, ok := c.check([16]byte{}, at, now); return ok },
	} {
		if bad() {
			t.Errorf("a cookie is taken though: %s", name)
		}
	}
}
