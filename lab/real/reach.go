package real

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/ipv6"

	"weft/lab/scenario"
)

const (
	// tryEvery is how often it is tried whether somebody reaches somebody. Where nobody answers, tries overlap.
	tryEvery = 200 * time.Millisecond
	// tryLimit is how long a try may take: three times what a connection takes across the slowest links that scenarios
	// have.
	tryLimit = time.Second
	// answerMost is the length of the longest answer, in bytes: a name and an address.
	answerMost = 128
)

// A reach is one question, and what came of tries since somebody looked.
type reach struct {
	scenario.Question
	service scenario.Reach
	mu      sync.Mutex
	tries   []*try // in the order in which they began
}

// A try is one.
type try struct {
	began, ended time.Duration
	err          error
	said         string
}

// prepareReaches has machines answer, each at the ports at which somebody is expected to reach it or not to: by its name,
// and the address that the question came from.
func (w *world) prepareReaches() error {
	listens := map[string]bool{}
	for _, e := range w.Expect {
		if e.Reach.Service == "" {
			continue
		}
		if !slices.ContainsFunc(w.reaches, func(r *reach) bool { return r.Question == e.Question() }) {
			w.reaches = append(w.reaches, &reach{Question: e.Question(), service: e.Reach})
		}
		target, _, _ := strings.Cut(e.B, ".")
		for _, name := range []string{target, e.Reach.At} {
			m, port := w.hosts[name], e.Reach.Port()
			protocol, answer := "TCP", w.answer
			if e.Reach.UDP() {
				protocol, answer = "UDP", w.answerDatagrams
			}
			if at := fmt.Sprint(name, protocol, port); m == nil || port == 0 || listens[at] {
				continue
			} else {
				listens[at] = true
			}
			if err := answer(m, port); err != nil {
				return fmt.Errorf("line %d: having %s answer at %s port %d: %w: name another port", e.Line, name, protocol, port, err)
			}
		}
	}
	return nil
}

// answer has a machine answer at a port of TCP, for as long as the run lasts.
func (w *world) answer(m *machine, port uint16) error {
	l, err := m.host.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if err != nil {
		return err
	}
	context.AfterFunc(w.ctx, func() { l.Close() })
	w.probes.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
			c.SetDeadline(time.Now().Add(tryLimit))
			fmt.Fprintf(c, "%s %s", m.Name, from.Addr().Unmap())
			c.Close()
		}
	})
	return nil
}

// answerDatagrams has a machine answer at a port of UDP, from the address that was asked, whichever of its own that is.
func (w *world) answerDatagrams(m *machine, port uint16) error {
	c, err := m.host.ListenUDP(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if err != nil {
		return err
	}
	asked := ipv6.NewPacketConn(c)
	if err := asked.SetControlMessage(ipv6.FlagDst, true); err != nil {
		c.Close()
		return err
	}
	context.AfterFunc(w.ctx, func() { c.Close() })
	w.probes.Go(func() {
		question := make([]byte, answerMost)
		for {
			_, about, from, err := asked.ReadFrom(question)
			if err != nil {
				return // the run has ended
			}
			if about == nil {
				continue
			}
			asker := from.(*net.UDPAddr).AddrPort()
			asked.WriteTo(fmt.Appendf(nil, "%s %s", m.Name, asker.Addr().Unmap()), &ipv6.ControlMessage{Src: about.Dst}, from) // what does not get out is tried again
		}
	})
	return nil
}

// startReaches begins to try.
func (w *world) startReaches() {
	for _, r := range w.reaches {
		w.probes.Go(func() {
			tick := time.NewTicker(tryEvery)
			defer tick.Stop()
			for {
				t := &try{began: w.now()}
				r.mu.Lock()
				r.tries = append(r.tries, t)
				r.mu.Unlock()
				w.probes.Go(func() {
					said, err := w.try(r)
					r.mu.Lock()
					t.said, t.err, t.ended = said, err, w.now()
					r.mu.Unlock()
				})
				select {
				case <-w.ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
}

// noteReaches tells the history of all tries since the last time, up to the first that is still under way.
func (w *world) noteReaches() {
	for _, r := range w.reaches {
		r.mu.Lock()
		for len(r.tries) > 0 && r.tries[0].ended > 0 {
			t := r.tries[0]
			why := t.said
			if t.err != nil {
				why = t.err.Error()
			}
			w.history.Tried(r.Question, t.began, t.ended, t.err == nil, why)
			r.tries = r.tries[1:]
		}
		r.mu.Unlock()
	}
}

// try tries once, and says what was seen.
func (w *world) try(r *reach) (said string, err error) {
	to := w.address(r.B, r.service.IPv6())
	if !to.IsValid() {
		return "", fmt.Errorf("%s has no such address", r.B)
	}
	a := w.hosts[r.A]
	if r.service.Port() == 0 {
		ctx, cancel := context.WithTimeout(w.ctx, 2*tryLimit)
		defer cancel()
		if _, err := a.host.Run(ctx, "ping", "-n", "-c", "1", "-W", fmt.Sprint(int(tryLimit.Seconds())), to.String()); err != nil {
			return "", errors.New("no answer")
		}
		return "answered", nil
	}
	ask := w.ask
	if r.service.UDP() {
		ask = w.askByDatagram
	}
	b, err := ask(a, netip.AddrPortFrom(to, r.service.Port()))
	if err != nil {
		return "", err
	}
	name, seen, _ := strings.Cut(string(b), " ")
	from, _ := netip.ParseAddr(seen)
	said = fmt.Sprintf("%s answered, and saw %s", name, seen)
	want := r.At
	if want == "" {
		want, _, _ = strings.Cut(r.B, ".")
	}
	if name != want || r.As != "" && !slices.Contains(w.addresses(r.As), from) {
		return "", errors.New(said)
	}
	return said, nil
}

// ask connects, and returns the answer.
func (w *world) ask(from *machine, to netip.AddrPort) ([]byte, error) {
	c, err := w.dial(from, "tcp", to)
	if err != nil {
		return nil, dialError(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(tryLimit))
	b, err := io.ReadAll(io.LimitReader(c, answerMost))
	if err != nil {
		return nil, errors.New("the connection was opened, and nobody answered")
	}
	return b, nil
}

// askByDatagram sends an empty datagram, and returns the answer.
func (w *world) askByDatagram(from *machine, to netip.AddrPort) ([]byte, error) {
	c, err := w.dial(from, "udp", to)
	if err != nil {
		return nil, dialError(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(tryLimit))
	if _, err := c.Write(nil); err != nil {
		return nil, dialError(err)
	}
	b := make([]byte, answerMost)
	n, err := c.Read(b)
	if err != nil {
		return nil, dialError(err)
	}
	return b[:n], nil
}

// dialError is why there is no connection, without addresses that say nothing to who wrote the scenario.
func dialError(err error) error {
	var t interface{ Timeout() bool }
	if errors.As(err, &t) && t.Timeout() {
		return errors.New("no answer")
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// dial connects from a machine.
func (w *world) dial(from *machine, network string, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(w.ctx, tryLimit)
	defer cancel()
	if !to.Addr().IsValid() {
		<-ctx.Done() // who has no address yet is tried again no sooner than others
		return nil, ctx.Err()
	}
	return from.host.DialContext(ctx, network, to.String())
}

// address is what a name of an expectation means: of a node its own in the overlay, of a router that outside, of others
// that of their first link; HOST.NETWORK: that of a host on a network. The zero address: it has none now.
func (w *world) address(name string, six bool) netip.Addr {
	pick := func(four, addr6 netip.Addr) netip.Addr {
		if six {
			return addr6
		}
		return four
	}
	if r := w.routers[name]; r != nil {
		return pick(r.Addr(), r.Addr6())
	}
	host, network, leg := strings.Cut(name, ".")
	m := w.hosts[host]
	switch {
	case leg:
		i := slices.IndexFunc(m.Legs(), func(g scenario.Leg) bool { return g.On == network })
		if i > 0 {
			return pick(m.legs[i-1].Addr(), m.legs[i-1].Addr6())
		}
	case m.Role == scenario.Node:
		if a := m.overlay.Load(); a != nil {
			return pick(a[0], a[1])
		}
		return netip.Addr{}
	}
	return pick(m.host.Addr(), m.host.Addr6())
}

// addresses are all that a machine or a router has.
func (w *world) addresses(name string) (list []netip.Addr) {
	if r := w.routers[name]; r != nil {
		list = []netip.Addr{r.Addr(), r.Addr6()}
		if w.Router(name).Kernel == "" {
			list = append(list, r.Public()...)
		}
		return list
	}
	m := w.hosts[name]
	list = []netip.Addr{m.host.Addr(), m.host.Addr6()}
	for _, g := range m.legs {
		list = append(list, g.Addr(), g.Addr6())
	}
	if a := m.overlay.Load(); a != nil {
		list = append(list, a[:]...)
	}
	return list
}
