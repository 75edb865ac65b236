package path

import (
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// boot starts a host's agent: links, relay, STUN.
func (h *host) boot() {
	w := h.w
	h.up, h.session = true, w.rng.Uint32()
	h.counters, h.learned, h.wakeAt = nil, map[netip.AddrPort]bool{}, time.Time{}
	h.sizes = map[weft.Via]int{}
	h.spares = map[weft.LinkID]netip.AddrPort{}
	h.agent = New(w.now, Config{Session: h.session, Eager: h.eager, Leads: h.leads, Budget: h.budget, MTU: h.mtu, Rand: func(b []byte) {
		for i := range b {
			b[i] = byte(w.rng.Uint32())
		}
	}})
	h.tcp.conns = nil
	h.agent.SetTCP(w.now, h.tcp.use)
	h.agent.SetBonding(w.now, h.bonds)
	h.agent.SetMetrics(w.now, h.metrics)
	h.members = nil
	h.agent.SetLocal(w.now, h.candidates())
	h.agent.SetRelays(w.now, h.vias())
	switch {
	case h.told != nil:
		h.agent.SetNAT(w.now, *h.told)
	case len(h.uplinks) > 0:
		h.agent.SetNATs(w.now, h.linkNATs())
	case h.nat != nil && !h.noNAT:
		h.agent.SetNAT(w.now, h.nat.Config().NAT())
	}
	h.agent.SetOnline(w.now, w.other(h).up)
	if o := w.other(h); o.up {
		o.agent.SetOnline(w.now, true)
		o.poll()
	}
	if o := w.other(h); w.uneven && o.up {
		h.agent.SetRemote(w.now, o.candidates())
	}
	h.bind(h.session)
	h.observe()
}

// halt stops a host without a word.
func (h *host) halt() { h.up = false }

func (w *world) other(h *host) *host {
	if h == w.a {
		return w.b
	}
	return w.a
}

func (h *host) candidates() []weft.Candidate {
	if len(h.uplinks) > 0 {
		return h.linkCandidates()
	}
	list := []weft.Candidate{{Addr: h.inside, Kind: weft.Host, TCP: h.tcp.takes}}
	if outside, ok := h.out(h.inside, relayAddr); ok && h.nat != nil && !h.fault.udp {
		list = append(list, weft.Candidate{Addr: outside, Kind: weft.ServerReflexive})
	}
	return list
}

func (h *host) vias() (vias []weft.Via) {
	if !h.noUDP {
		vias = append(vias, relayUDP)
	}
	if !h.noStream {
		vias = append(vias, relayTCP)
	}
	return vias
}

// bind keeps the relay's binding, and tells the agent when it shows another address of ours.
func (h *host) bind(session uint32) {
	if !h.up || h.session != session {
		return
	}
	if !h.noUDP && !h.fault.udp && !h.fault.relayUDP {
		h.bound, _ = h.out(h.inside, relayAddr)
		if o := h.w.other(h); o.up && h.bound.IsValid() {
			o.agent.SetAttested(h.w.now, []netip.Addr{h.bound.Addr()})
			o.poll()
		}
		if o := h.w.other(h); o.bound.IsValid() {
			h.agent.SetAttested(h.w.now, []netip.Addr{o.bound.Addr()})
		}
		h.agent.SetLocal(h.w.now, h.candidates())
		h.poll()
	}
	h.w.after(10*time.Second, func() { h.bind(session) })
}

// tick observes traffic as a node does: often while there is any.
func (h *host) tick(session uint32, serial int) {
	if !h.up || h.session != session || h.ticks != serial {
		return
	}
	if h.w.now.Before(h.starved) {
		h.w.at(h.starved, func() { h.tick(session, serial) })
		return
	}
	h.observe()
}

func (h *host) observe() {
	every := time.Second
	if h.w.now.Sub(h.active) < 2*time.Second {
		every = 100 * time.Millisecond
	}
	h.ticks++
	session, serial := h.session, h.ticks
	h.w.after(every, func() { h.tick(session, serial) })
	h.agent.Observe(h.w.now, h.counters)
	h.poll()
}

// count enters a packet of data.
func (h *host) count(via weft.Via, size int, tx bool) {
	i := slices.IndexFunc(h.counters, func(t Traffic) bool { return t.Via == via })
	if i < 0 {
		i = len(h.counters)
		h.counters = append(h.counters, Traffic{Via: via})
	}
	if c := &h.counters[i]; tx {
		c.TxPackets++
		c.TxBytes += uint64(size)
	} else {
		c.RxPackets++
		c.RxBytes += uint64(size)
	}
	idle := h.w.now.Sub(h.active) > time.Second
	h.active = h.w.now
	if idle && h.w.prompt {
		h.observe()
	}
}

// poll lets the agent act, and checks what it says.
func (h *host) poll() {
	w := h.w
	h.polls++
	h.agent.Poll(w.now, &h.actions)
	out := &h.actions
	for _, a := range out.Learn {
		if h.learned[a] {
			w.t.Fatalf("%s learned %v twice", h.name, a)
		}
		h.learned[a] = true
	}
	for _, a := range out.Forget {
		if !h.learned[a] {
			w.t.Fatalf("%s forgets %v, which it did not learn", h.name, a)
		}
		delete(h.learned, a)
	}
	for _, s := range out.Switches {
		if s.Reason == "" || s.From == s.To || s.At != w.now {
			w.t.Fatalf("%s: a switch without sense: %+v", h.name, s)
		}
		h.switches = append(h.switches, s)
		w.note("%s: %v -> %v: %s", h.name, s.From, s.To, s.Reason)
	}
	if !out.Next.IsZero() && !out.Next.After(w.now) {
		w.t.Fatalf("%s wants to be called at %v, and it is %v", h.name, out.Next.Sub(w.start), w.now.Sub(w.start))
	}
	if n := len(h.agent.pairs); n > MaxDirect+MaxReflexive+MaxRelayed {
		w.t.Fatalf("%s keeps %d pairs", h.name, n)
	}
	for _, m := range out.MTUs {
		if h.sizes[m.Via] == m.Size || m.Size <= 0 || m.Size > h.mtu {
			w.t.Fatalf("%s: says %v of %v, and said %d", h.name, m.Size, m.Via, h.sizes[m.Via])
		}
		h.sizes[m.Via] = m.Size
		if m.Via.Method == weft.Direct && (h.shortest == 0 || m.Size < h.shortest) {
			h.shortest = m.Size
		}
		w.note("%s: packets of %d by %v", h.name, m.Size, m.Via)
	}
	h.seated(out)
	if via := h.agent.Selected(); h.mtu > 0 && via != (weft.Via{}) && h.sizes[via] == 0 {
		w.t.Fatalf("%s sends by %v and was not told how much", h.name, via)
	}
	tooLong := false
	for _, t := range out.Send {
		h.sent++
		size := 90
		if ping, ok := t.Message.(wire.Ping); ok {
			h.pings++
			if t.Whole {
				h.whole++
			}
			size = frameOverhead + ping.Padding
			if card := h.fault.card; t.Whole && card > 0 && size > card {
				h.agent.TooLong(w.now, t.Via, ping)
				tooLong = true
				continue
			}
		}
		w.transmit(h, t.Via, payload{m: clone(t.Message), size: size, ttl: t.TTL, whole: t.Whole})
	}
	if tooLong {
		defer h.poll()
	}
	for _, d := range out.Dial {
		h.dial(d)
	}
	for _, via := range out.Hang {
		h.hang(via)
	}
	for _, link := range out.Close {
		if !h.spares[link].IsValid() {
			w.t.Fatalf("%s closes socket %d, which is not open", h.name, link)
		}
		delete(h.spares, link)
	}
	if out.Open.Count > 0 {
		h.open(out.Open)
	}
	if !out.Next.IsZero() && (h.wakeAt.IsZero() || out.Next.Before(h.wakeAt) || !h.wakeAt.After(w.now)) {
		h.wakeAt = out.Next
		at, session := out.Next, h.session
		w.at(at, func() { h.wake(session, at) })
	}
}

// wake polls as the agent wished, or as soon as there is a processor.
func (h *host) wake(session uint32, at time.Time) {
	switch {
	case !h.up || h.session != session || !h.wakeAt.Equal(at):
	case h.w.now.Before(h.starved):
		h.w.at(h.starved, func() { h.wake(session, at) })
	default:
		h.wakeAt = time.Time{}
		h.poll()
	}
}

// open serves the agent's wish for sockets, and asks the relay's STUN server by the first.
func (h *host) open(o Opening) {
	w := h.w
	var list []Opened
	for range o.Count {
		if h.lastLink++; h.lastLink < FirstSpare {
			h.lastLink = FirstSpare
		}
		port := uint16(20000 + int(h.lastLink-FirstSpare)%40000)
		h.spares[h.lastLink] = netip.AddrPortFrom(h.inside.Addr(), port)
		if at := h.leaves(o.Link); at.IsValid() {
			h.spares[h.lastLink] = netip.AddrPortFrom(at.Addr(), port)
		}
		list = append(list, Opened{Link: h.lastLink, Port: port})
	}
	if h.most = max(h.most, len(h.spares)); h.most > MaxSockets {
		w.t.Fatalf("%s has %d sockets open", h.name, h.most)
	}
	session := h.session
	done := func() {
		if h.up && h.session == session {
			h.agent.Opened(w.now, list)
			h.poll()
		}
	}
	if !o.Ask {
		w.after(time.Millisecond, done)
		return
	}
	list[0].Mapped, _ = h.out(h.spares[list[0].Link], relayAddr)
	w.after(2*w.relayLeg, done)
}

// socket tells the link of the socket at an inside address.
func (h *host) socket(inside netip.AddrPort) (weft.LinkID, bool) {
	for _, u := range h.uplinks {
		if inside == u.inside {
			return u.id, true
		}
	}
	if inside == h.inside {
		return 0, true
	}
	for link, at := range h.spares {
		if at == inside {
			return link, true
		}
	}
	return 0, false
}

// clone copies what the agent will use again.
func clone(m wire.PeerMessage) wire.PeerMessage {
	switch m := m.(type) {
	case wire.Report:
		return wire.Report{Paths: slices.Clone(m.Paths)}
	case wire.Candidates:
		m.List = slices.Clone(m.List)
		return m
	}
	return m
}

// talk makes a host send data at a rate until a time.
func (h *host) talk(every time.Duration, size int, until time.Time) {
	idle := !h.flow.until.After(h.w.now)
	h.flow.every, h.flow.size, h.flow.until = every, size, until
	if idle {
		h.say()
	}
}

func (h *host) say() {
	w, f := h.w, &h.flow
	if !w.now.Before(f.until) {
		return
	}
	if w.now.Before(h.starved) {
		w.at(h.starved, h.say)
		return
	}
	if h.up {
		via := h.agent.Selected()
		f.received, f.sentAt = append(f.received, time.Time{}), append(f.sentAt, w.now)
		if via == (weft.Via{}) {
			f.noWay++
			h.agent.Want(w.now)
			h.poll()
		} else {
			size := f.size
			if h.mtu > 0 {
				size = min(size, h.sizes[via]+32)
			}
			w.transmit(h, via, payload{seq: f.sent, size: size})
			h.count(via, size, true)
		}
		f.sent++
	}
	w.after(f.every, h.say)
}

// outage is the longest time between two packets that arrive, of those sent in a span of time.
func (f *flowStats) outage(from, to time.Time) (longest time.Duration) {
	last := time.Time{}
	for i, at := range f.sentAt {
		if at.Before(from) || !at.Before(to) {
			continue
		}
		if last.IsZero() {
			last = at
		}
		if !f.received[i].IsZero() {
			longest = max(longest, at.Sub(last))
			last = at
		}
	}
	return max(longest, to.Sub(last)-f.every)
}

// lostSince counts the packets sent in a span of time that did not arrive.
func (f *flowStats) lostBetween(from, to time.Time) (n int) {
	for i, at := range f.sentAt {
		if !at.Before(from) && at.Before(to) && f.received[i].IsZero() {
			n++
		}
	}
	return n
}
