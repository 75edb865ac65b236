package netns

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"weft/lab/vnet"
)

// offices are two hosts with lines between them, each on a segment of its own. The lines are at the first host.
func offices(t testing.TB, lines ...vnet.LinkConfig) (a, b *Host, legs [][2]*Leg) {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip(err)
	}
	l, err := New(t.Context(), "wefttest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	add := func(name string) *Host {
		h, err := l.AddHost(name)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	a, b = add("a"), add("b")
	for i, line := range lines {
		n, err := l.AddSegment("segment" + string(rune('1'+i)))
		if err != nil {
			t.Fatal(err)
		}
		near, err := a.AddLeg(n, WithLine(line, line), WithIPv6())
		if err != nil {
			t.Fatal(err)
		}
		far, err := b.AddLeg(n, WithIPv6())
		if err != nil {
			t.Fatal(err)
		}
		legs = append(legs, [2]*Leg{near, far})
	}
	return a, b, legs
}

// between is a UDP socket at each end of a line.
func between(t *testing.T, legs [2]*Leg) (near, far socket) {
	t.Helper()
	return udp(t, legs[0].host, netip.AddrPortFrom(legs[0].Addr(), 0).String()),
		udp(t, legs[1].host, netip.AddrPortFrom(legs[1].Addr(), 7000).String())
}

func TestAHostWithSeveralLegsReachesEachNeighbourByItsOwnLine(t *testing.T) {
	t.Parallel()
	a, b, legs := offices(t, vnet.LinkConfig{Delay: 5 * time.Millisecond}, vnet.LinkConfig{Delay: 40 * time.Millisecond})
	for i, want := range []time.Duration{10 * time.Millisecond, 80 * time.Millisecond} {
		near, far := between(t, legs[i])
		near.send(at(legs[i][1].Addr(), 7000), "first") // ARP is behind us then
		far.expect("first")
		least := time.Hour // of several: a busy machine may be late with one, and never early
		for range 5 {
			began := time.Now()
			near.send(at(legs[i][1].Addr(), 7000), "there")
			from := far.expect("there")
			far.send(from, "back")
			near.expect("back")
			least = min(least, time.Since(began))
		}
		if least < want || least > want+10*time.Millisecond {
			t.Errorf("by line %d the shortest of five round trips took %v, not %v", i, least, want)
		}
	}
	six := udp(t, b, at(legs[1][1].Addr6(), 7000).String())
	c := udp(t, a, at(legs[1][0].Addr6(), 0).String())
	c.send(at(legs[1][1].Addr6(), 7000), "six")
	six.expect("six")
}

func TestALineCutInOneDirectionSwallowsThatDirectionOnly(t *testing.T) {
	t.Parallel()
	_, _, legs := offices(t, vnet.LinkConfig{})
	near, far := between(t, legs[0])
	to := at(legs[0][1].Addr(), 7000)
	near.send(to, "first")
	from := far.expect("first")
	for _, c := range []struct{ out, in bool }{{true, false}, {false, true}, {true, true}, {false, false}} {
		if err := legs[0][0].SetCut(c.out, c.in); err != nil {
			t.Fatal(err)
		}
		near.send(to, "out")
		if c.out {
			far.silent()
		} else {
			far.expect("out")
		}
		far.send(from, "in")
		if c.in {
			near.silent()
		} else {
			near.expect("in")
		}
	}
}

func TestALegThatGoesDownComesBackWithItsAddressesAndRoutes(t *testing.T) {
	t.Parallel()
	_, _, legs := offices(t, vnet.LinkConfig{Rate: 100e6})
	near := legs[0][0]
	// The kernel tells its own parts of a carrier some time later.
	works := func(what string) {
		t.Helper()
		n, f := between(t, legs[0])
		defer n.Close()
		defer f.Close()
		err := WaitFor(deadline(t), what, func() error {
			if _, err := n.WriteToUDPAddrPort([]byte("hello"), at(legs[0][1].Addr(), 7000)); err != nil {
				return err
			}
			f.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, err := f.Read(make([]byte, 8))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	works("the line to work")
	is := func(what string, running, up bool) {
		t.Helper()
		err := WaitFor(deadline(t), what, func() error {
			return near.host.Do(func() error {
				i, err := net.InterfaceByName(near.Name())
				if err == nil && (i.Flags&net.FlagRunning != 0 != running || i.Flags&net.FlagUp != 0 != up) {
					err = fmt.Errorf("its flags are %v", i.Flags)
				}
				return err
			})
		})
		if err != nil {
			t.Error(err)
		}
	}
	for what, set := range map[string]func(bool) error{"the carrier": near.SetCarrier, "the interface": near.SetUp} {
		if err := set(false); err != nil {
			t.Fatal(err)
		}
		is("the host to see that "+what+" is gone", false, what == "the carrier")
		if err := set(true); err != nil {
			t.Fatal(err)
		}
		works("the line to work when " + what + " is back")
	}
}

func TestALineCarriesItsRateAndFollowsItsChange(t *testing.T) {
	a, b, legs := offices(t, vnet.LinkConfig{Rate: 20e6, Delay: 5 * time.Millisecond, Queue: 100_000})
	measure := func() float64 {
		t.Helper()
		server, err := b.Listen(netip.AddrPortFrom(legs[0][1].Addr(), 7001))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		out, err := a.DialContext(t.Context(), "tcp", at(legs[0][1].Addr(), 7001).String())
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		in, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		go io.Copy(out, zeros{})
		in.SetReadDeadline(time.Now().Add(5 * time.Second))
		io.CopyN(io.Discard, in, 256<<10) // slow start
		began := time.Now()
		n, err := io.CopyN(io.Discard, in, 1<<20)
		if err != nil {
			t.Fatalf("%d bytes came: %v", n, err)
		}
		return float64(n) * 8 / time.Since(began).Seconds() / 1e6
	}
	near := legs[0][0]
	for _, rate := range []float64{20, 40, 8} {
		link := vnet.LinkConfig{Rate: rate * 1e6, Delay: 5 * time.Millisecond, Queue: 100_000}
		if err := near.SetLinks(link, link); err != nil {
			t.Fatal(err)
		}
		// 1448 of 1514 bytes are TCP's payload. A machine that does other things starves who sends or reads, and then what has
		// piled up comes at once; so one of many looks has to be right: other packages' tests keep the processors for half a minute.
		most := rate * 1448 / 1514
		var seen []float64
		for range 60 {
			got := measure()
			if seen = append(seen, got); got <= most*1.02 && got >= most*0.95 {
				break
			}
		}
		if got := seen[len(seen)-1]; got > most*1.02 || got < most*0.95 {
			t.Errorf("a line of %v Mbit/s brings %.2f, not %.2f", rate, seen, most)
		} else {
			t.Logf("a line of %v Mbit/s brings %.2f of at most %.2f", rate, got, most)
		}
	}
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}
