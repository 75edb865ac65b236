package sim

import (
	"net/netip"
	"time"

	"weft"
	"weft/key"
	"weft/lab/vnet"
	"weft/stun"
	"weft/wire"
)

const (
	// stunPort and stunOther are a relay's two UDP ports: --stun's default, and the one after it.
	stunPort  = 3478
	stunOther = 3479
	// bindLifetime is package relay's.
	bindLifetime = time.Minute
	stunHeader   = 20 // bytes; RFC 8489 section 5
)

// A relayServer is the relay's end. It speaks package wire and keeps who is bound where; what package relay does for
// speed and against strangers is of no use here.
type relayServer struct {
	w         *world
	m         *machine
	id        weft.RelayID
	key       key.RelayPrivate
	on        bool
	main, alt *vnet.Socket
	responder stun.Responder
	cookies   map[netip.AddrPort][16]byte
	bound     map[netip.AddrPort]*binding
	nodes     map[weft.NodeID]*binding
	boxes     map[key.NodePublic]key.Box
	streams   map[weft.NodeID]*stream
}

// A binding is a node's to its address.
type binding struct {
	id    weft.NodeID
	at    netip.AddrPort
	until time.Time
	box   key.Box
}

func newRelayServer(w *world, m *machine) *relayServer {
	return &relayServer{
		w: w, m: m, key: key.NewPrivate[key.Relay](), boxes: map[key.NodePublic]key.Box{}, streams: map[weft.NodeID]*stream{},
		responder: stun.Responder{Ports: [2]uint16{stunPort, stunOther}},
	}
}

// addrs are where its UDP port is found.
func (r *relayServer) addrs() []netip.AddrPort {
	list := []netip.AddrPort{netip.AddrPortFrom(r.m.host.Addr(), stunPort)}
	if a := r.m.host.Addr6(); a.IsValid() {
		list = append(list, netip.AddrPortFrom(a, stunPort))
	}
	return list
}

// relay is what the network map says of it.
func (r *relayServer) relay() weft.Relay {
	return weft.Relay{ID: r.id, Name: r.m.spec.Name, Key: r.key.Public(), UDP: r.addrs(), UDPPort: stunPort}
}

func (r *relayServer) start(time.Time) {
	if r.on {
		return
	}
	r.on = true
	r.cookies, r.bound, r.nodes = map[netip.AddrPort][16]byte{}, map[netip.AddrPort]*binding{}, map[weft.NodeID]*binding{}
	var err error
	if r.main, err = r.m.host.Listen(stunPort); err == nil {
		r.alt, err = r.m.host.Listen(stunOther)
	}
	if err != nil {
		r.w.err = err
		return
	}
	r.main.Handle(func(now time.Time, from netip.AddrPort, b []byte) { r.receive(now, r.main, from, b) })
	r.alt.Handle(func(now time.Time, from netip.AddrPort, b []byte) { r.receive(now, r.alt, from, b) })
}

// stop ends the program: its streams end, and everybody hears of that.
func (r *relayServer) stop(time.Time) {
	if !r.on {
		return
	}
	r.on = false
	r.main.Close()
	r.alt.Close()
	for _, n := range r.w.nodes {
		if s := r.streams[n.id]; s != nil {
			life := s.life
			r.w.reliably(r.m, n.m, func(now time.Time) {
				if s.life == life && n.on() {
					s.ended(now)
				}
			})
		}
	}
	clear(r.streams)
}

// receive takes a datagram.
func (r *relayServer) receive(now time.Time, s *vnet.Socket, from netip.AddrPort, b []byte) {
	if to, payload, err := wire.ParseData(b); err == nil {
		if src := r.sender(now, from); src != nil {
			r.forward(now, src.id, to, payload, b, false, "")
		}
		return
	}
	if wire.Classify(b) == wire.ClassSTUN {
		r.stun(s, from, b)
		return
	}
	switch kind, _ := wire.KindOf(b); kind {
	case wire.KindBind:
		r.bind(now, from, b)
	case wire.KindLocate:
		r.located(now, from, b)
	case wire.KindProbe:
		r.probe(now, from, b)
	}
}

// sender is who is bound at an address.
func (r *relayServer) sender(now time.Time, at netip.AddrPort) *binding {
	if b := r.bound[at]; b != nil && now.Before(b.until) {
		return b
	}
	return nil
}

// forward takes a datagram to a node: by UDP what came by UDP, by its stream what came by a stream, as far as the
// receiver has both. Frame is payload with what a Data frame has in front, nil if it came by a stream.
func (r *relayServer) forward(now time.Time, from, to weft.NodeID, payload, frame []byte, streamed bool, what string) {
	if r.w.trace != nil && what == "" {
		what = r.w.trace.last
	}
	b := r.nodes[to]
	if b != nil && !now.Before(b.until) {
		b = nil
	}
	if s := r.streams[to]; s != nil && (streamed || b == nil) {
		s.deliver(from, payload, what)
		return
	}
	if b == nil {
		return
	}
	var buf [maxFrame + wire.DataPrefix]byte
	if frame == nil {
		frame = append(wire.AppendData(buf[:0], from), payload...)
	} else {
		frame = append(buf[:0], frame...)
		wire.SetDataID(frame, from)
	}
	r.w.transmit(r.main, b.at, frame, 0, what)
}

// fromStream takes what a node sends by its stream.
func (r *relayServer) fromStream(now time.Time, from, to weft.NodeID, payload []byte, what string) {
	r.forward(now, from, to, payload, nil, true, what)
}

// stun answers a binding request.
func (r *relayServer) stun(s *vnet.Socket, from netip.AddrPort, b []byte) {
	local := r.m.host.Addr()
	if from.Addr().Is6() {
		local = r.m.host.Addr6()
	}
	var buf [stun.MaxReply]byte
	reply, ok := r.responder.Respond(buf[:0], b, from, netip.AddrPortFrom(local, s.Port()))
	if !ok {
		return
	}
	r.w.transmit(r.socket(reply.From.Port()), reply.To, reply.Packet, 0, "STUN answer")
}

func (r *relayServer) socket(port uint16) *vnet.Socket {
	if port == stunOther {
		return r.alt
	}
	return r.main
}

// bind answers a Bind: by a Challenge unless it has the cookie, else by looking into it.
func (r *relayServer) bind(now time.Time, from netip.AddrPort, b []byte) {
	f, err := wire.ParseBind(b)
	if err != nil {
		return
	}
	if cookie, ok := r.cookies[from]; !ok || cookie != f.Cookie {
		if !ok {
			r.w.random(cookie[:])
			r.cookies[from] = cookie
		}
		r.answer(from, wire.AppendChallenge(nil, wire.Challenge{Nonce: f.Nonce, Cookie: cookie}))
		return
	}
	t, why := wire.VerifyTicket(f.Ticket, r.w.issuer.Public(), now)
	box, known := r.boxes[t.Key]
	if !known && why == wire.RefusedNot {
		if box, err = wire.RelayBox(r.key, t.Key); err != nil {
			why = wire.RefusedForged
		}
		r.boxes[t.Key] = box
	}
	if why == wire.RefusedNot && !f.Proves(box) {
		why = wire.RefusedForged
	}
	if why != wire.RefusedNot {
		r.answer(from, wire.AppendRefused(nil, f.Nonce, why))
		return
	}
	if old := r.nodes[t.Node]; old != nil {
		delete(r.bound, old.at)
	}
	at := &binding{id: t.Node, at: from, until: now.Add(bindLifetime), box: box}
	r.bound[from], r.nodes[t.Node] = at, at
	r.answer(from, wire.AppendBound(nil, wire.Bound{Nonce: f.Nonce, Lifetime: bindLifetime, Observed: from}, box))
}

func (r *relayServer) answer(to netip.AddrPort, b []byte) {
	what := ""
	if r.w.trace != nil {
		what = relayWords(b)
	}
	r.w.transmit(r.main, to, b, 0, what)
}

// located tells a node where another is bound.
func (r *relayServer) located(now time.Time, from netip.AddrPort, b []byte) {
	asker := r.sender(now, from)
	if asker == nil {
		return
	}
	q, err := wire.ParseLocate(nil, b, asker.box)
	if err != nil {
		return
	}
	l := wire.Located{Nonce: q.Nonce, Node: q.Node}
	if at := r.nodes[q.Node]; at != nil && now.Before(at.until) {
		l.Addr = at.at
	}
	r.answer(from, wire.AppendLocated(nil, l, asker.box))
}

// probe sends a STUN answer that no packet asked for to a port of the asker's own address.
func (r *relayServer) probe(now time.Time, from netip.AddrPort, b []byte) {
	asker := r.sender(now, from)
	if asker == nil {
		return
	}
	q, err := wire.ParseProbe(nil, b, asker.box)
	if err != nil {
		return
	}
	to, via := netip.AddrPortFrom(from.Addr(), q.Port), r.main
	if q.Alternate {
		via = r.alt
	}
	request := append([]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42}, q.Tx[:]...) // RFC 8489: a bare Binding request
	p := wire.Probed{Nonce: q.Nonce, Addr: to, Outcome: wire.ProbeNoPort}
	if reply, ok := r.responder.Respond(nil, request, to, netip.AddrPortFrom(r.m.host.Addr(), via.Port())); ok && len(request) == stunHeader {
		r.w.transmit(via, to, reply.Packet, 0, "STUN probe")
		p.Outcome = wire.ProbeSent
	}
	r.answer(from, wire.AppendProbed(nil, p, asker.box))
}
