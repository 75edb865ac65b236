package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"weft"
	"weft/relay"
)

const (
	// resolveEvery is how often a relay's name is looked up again while its UDP does not answer.
	resolveEvery = 30 * time.Second
	// streamTimeout bounds reaching a relay's stream, WebSocket as the second try included.
	streamTimeout = 20 * time.Second
	// lapPause is how much longer, each time, it is before a relay that answered by no link is tried by all of them at
	// another of its addresses, up to lapLongest: asking goes on meanwhile, more and more seldom.
	lapPause   = 5 * time.Second
	lapLongest = time.Minute
	// maxStreams is how many relays' streams one node keeps open: the nearest ones by number. Over UDP it is
	// bound to all of them, which costs a packet in some seconds.
	maxStreams = 3
)

// A relayLink is this node's end of one relay: its binding over UDP and its stream.
type relayLink struct {
	relay     weft.Relay
	addrs     []netip.AddrPort // of its UDP port; the first is tried, then the next
	binding   *relay.UDPBinding
	boundTo   netip.AddrPort // the address that the engine was told, if any
	link      weft.LinkID    // that the relay is bound by
	wanted    weft.LinkID    // that it was moved to for a peer's sake; 0: it was not, or not in vain
	tried     int            // by how many links and addresses in a row it did not answer
	moveOn    time.Time      // when the next is tried at the earliest
	observed  netip.AddrPort // where the relay sees this node
	stream    *relay.Stream
	cancel    context.CancelFunc // of the goroutines that look up and keep the stream
	streamErr string
	redial    chan struct{}
	probes    map[[12]byte]chan<- bool // who waits for an answer to a Probe
}

func (r *relayLink) close() {
	r.cancel()
	r.forgetProbes()
}

// recheck binds anew and has the stream looked at: the network changed.
func (r *relayLink) recheck(now time.Time) {
	r.tried, r.moveOn = 0, time.Time{}
	if r.binding != nil {
		r.binding.Recheck(now)
	}
	nudge(r.redial)
}

// setRelays makes the links agree with the map.
func (me *mesh) setRelays(now time.Time) {
	for id, r := range me.relays {
		i := slices.IndexFunc(me.netmap.Relays, func(x weft.Relay) bool { return x.ID == id })
		if i >= 0 && me.netmap.Relays[i].Equal(r.relay) {
			continue
		}
		r.close()
		me.engine.RemoveRelay(id)
		delete(me.relays, id)
	}
	for n, x := range me.netmap.Relays {
		r := me.relays[x.ID]
		if r == nil {
			ctx, cancel := context.WithCancel(me.streams.ctx)
			r = &relayLink{relay: x, cancel: cancel, redial: make(chan struct{}, 1)}
			me.relays[x.ID] = r
			go me.streams.resolve(ctx, r)
			if n < maxStreams {
				go me.streams.keep(ctx, r)
			}
		}
		if r.binding != nil {
			r.binding.SetTicket(me.netmap.Ticket)
		}
	}
	me.relaysChanged(now)
}

// setAddrs takes in where a relay's UDP port is.
func (me *mesh) setAddrs(now time.Time, r *relayLink, addrs []netip.AddrPort) {
	if me.relays[r.relay.ID] != r || slices.Equal(addrs, r.addrs) {
		return
	}
	r.addrs = addrs
	me.bind(now, r, me.home(r.relay.ID))
	for _, l := range me.links.list {
		l.reflexive.SetServers(now, me.stunServers())
		l.watch.Recheck()
	}
}

// stunServers are the STUN servers of all relays.
func (me *mesh) stunServers() (servers []netip.AddrPort) {
	for _, x := range me.netmap.Relays {
		if l := me.relays[x.ID]; l != nil {
			servers = append(servers, l.addrs...)
		}
	}
	return servers
}

// bind starts the exchange with the first of the relay's addresses, by a link.
func (me *mesh) bind(now time.Time, r *relayLink, link weft.LinkID) {
	r.binding, r.link = nil, link
	r.forgetProbes()
	if len(r.addrs) == 0 {
		return
	}
	b, err := relay.NewUDPBinding(relay.UDPBindingConfig{NodeKey: me.cfg.Key, Relay: r.relay, Ticket: me.netmap.Ticket})
	if err != nil {
		me.log.Warn("a relay cannot be used over UDP", "relay", r.relay.Name, "error", err)
		return
	}
	r.binding = b
}

// pollRelay sends what the binding wants sent and returns when to ask again.
func (me *mesh) pollRelay(now time.Time, r *relayLink) time.Time {
	if r.binding == nil {
		return time.Time{}
	}
	var next time.Time
	for range 4 { // a binding has one frame to send at a time; this bounds a mistake, not a need
		b, at := r.binding.Poll(now)
		next = at
		if b == nil {
			break
		}
		me.engine.WriteTo(r.link, r.addrs[0], b) // lost is lost: the binding asks again
	}
	if r.binding.Lost() {
		if at := me.elsewhere(now, r); !at.IsZero() && (at.Before(next) || next.IsZero()) {
			next = at
		}
	}
	me.fetchAnswers(now, r)
	me.relayState(now, r)
	return next
}

// elsewhere begins to bind a relay that does not answer by another link, or when it did by none at another of its
// addresses. It returns when to ask again; zero where there is nothing else to try.
func (me *mesh) elsewhere(now time.Time, r *relayLink) time.Time {
	n := max(1, len(me.links.list))
	if n < 2 && len(r.addrs) < 2 {
		return time.Time{}
	}
	if now.Before(r.moveOn) {
		return r.moveOn
	}
	me.spread.spoils(now, r)
	if r.tried++; r.tried%n == 0 {
		r.addrs = append(r.addrs[1:len(r.addrs):len(r.addrs)], r.addrs[0])
		r.moveOn = now.Add(min(time.Duration(r.tried/n)*lapPause, lapLongest))
	}
	me.bind(now, r, me.links.next(r.link))
	return now
}

// takeRelayFrame hands a relay's answer to the binding that waits for it.
func (me *mesh) takeRelayFrame(now time.Time, link weft.LinkID, from netip.AddrPort, b []byte) {
	for _, r := range me.relays {
		if r.binding == nil || r.link != link || r.addrs[0] != from || !r.binding.Handle(now, b) {
			continue
		}
		r.tried, r.moveOn = 0, time.Time{}
		me.fetchAnswers(now, r)
		me.relayState(now, r)
		return
	}
}

// relayState tells engine and agents when a relay's UDP binding came or went.
func (me *mesh) relayState(now time.Time, r *relayLink) {
	var bound, observed netip.AddrPort
	if r.binding != nil && r.binding.Bound() {
		bound, observed = r.addrs[0], r.binding.Observed()
	}
	if bound != r.boundTo {
		r.boundTo = bound
		if bound.IsValid() {
			if l := me.links.find(r.link); l != nil {
				l.watch.Recheck() // there is one more to ask
			}
		}
		for _, p := range me.peers {
			p.locateSoon(now)
		}
		me.log.Info("relay over UDP", "relay", r.relay.Name, "bound", bound.IsValid(), "address", r.addrs[0].String(), "link", me.device(r.link))
		me.relaysChanged(now)
		if me.links.apart {
			me.tellNATs(now) // the first may be another now
		}
	}
	if observed != r.observed {
		r.observed = observed
		me.gatherLocal(now)
	}
}

// relaysChanged tells the engine and every agent which relayed ways there are.
func (me *mesh) relaysChanged(now time.Time) {
	for id, r := range me.relays {
		if r.stream != nil {
			me.engine.SetRelayOn(id, r.link, r.boundTo, r.stream)
		} else {
			me.engine.SetRelayOn(id, r.link, r.boundTo, nil) // not a typed nil
		}
	}
	by := me.relayLinks()
	for _, p := range me.peers {
		p.agent.SetRelayLinks(now, by)
		p.agent.SetRelays(now, me.relayVias(p.node))
		p.due = true
	}
}

// relayVias are the relayed ways to a peer, best first: over UDP before streams, its home relay before others.
func (me *mesh) relayVias(n weft.Node) []weft.Via {
	ids := make([]weft.RelayID, 0, len(me.relays))
	for id := range me.relays {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b weft.RelayID) int {
		if home := boolInt(b == n.HomeRelay) - boolInt(a == n.HomeRelay); home != 0 {
			return home
		}
		return int(a) - int(b)
	})
	var out []weft.Via
	for _, id := range ids {
		if me.relays[id].boundTo.IsValid() {
			out = append(out, weft.Via{Method: weft.RelayUDP, Relay: id})
		}
	}
	for _, id := range ids {
		if me.relays[id].stream != nil {
			out = append(out, weft.Via{Method: weft.RelayStream, Relay: id})
		}
	}
	return out
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// homeRelay is the relay that others should use for this node: the nearest by UDP, else the first with a stream.
func (me *mesh) homeRelay() weft.RelayID {
	var best weft.RelayID
	var bestRTT time.Duration
	for _, x := range me.netmap.Relays {
		r := me.relays[x.ID]
		switch {
		case r == nil:
		case r.boundTo.IsValid() && (bestRTT == 0 || r.binding.RTT() < bestRTT*8/10):
			best, bestRTT = x.ID, max(r.binding.RTT(), 1)
		case best == 0 && r.stream != nil:
			best = x.ID
		}
	}
	return best
}

// relayUDPAddrs finds a relay's UDP addresses: those that the map has, else what its name resolves to.
func relayUDPAddrs(ctx context.Context, r weft.Relay, lookup func(context.Context, string) ([]netip.Addr, error)) ([]netip.AddrPort, error) {
	if len(r.UDP) > 0 {
		return r.UDP, nil
	}
	if r.UDPPort == 0 {
		return nil, nil // it has no UDP
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, u.Hostname())
	if err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a.Unmap(), r.UDPPort))
	}
	slices.SortStableFunc(out, func(a, b netip.AddrPort) int { return boolInt(b.Addr().Is4()) - boolInt(a.Addr().Is4()) })
	return out, nil
}

// A streamDialer runs the goroutines that a relay needs beside the mesh's own: those that wait for names and
// for connections. What they find they post.
type streamDialer struct {
	ctx  context.Context
	mesh *mesh
}

// resolve keeps a relay's UDP addresses known.
func (d streamDialer) resolve(ctx context.Context, r *relayLink) {
	for ctx.Err() == nil {
		addrs, err := relayUDPAddrs(ctx, r.relay, lookupAddrs)
		if err == nil {
			d.mesh.post(func(now time.Time) { d.mesh.setAddrs(now, r, addrs) })
			if len(r.relay.UDP) > 0 {
				return
			}
		} else {
			d.mesh.log.Debug("a relay's name does not resolve", "relay", r.relay.Name, "error", err)
		}
		sleep(ctx, resolveEvery)
	}
}

// keep keeps a relay's stream up.
func (d streamDialer) keep(ctx context.Context, r *relayLink) {
	wait := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := d.once(ctx, r)
		if ctx.Err() != nil {
			return
		}
		sentence := ""
		if err != nil {
			sentence = err.Error()
		}
		d.mesh.post(func(now time.Time) {
			r.stream, r.streamErr = nil, sentence
			if d.mesh.relays[r.relay.ID] == r {
				d.mesh.relaysChanged(now)
			}
		})
		if time.Since(began) > retryLast {
			wait = retryFirst
		}
		select {
		case <-ctx.Done():
		case <-r.redial:
			wait = retryFirst
		case <-time.After(wait/2 + rand.N(wait)):
			wait = min(2*wait, retryLast)
		}
	}
}

// once is one stream, from dialling to its end.
func (d streamDialer) once(ctx context.Context, r *relayLink) error {
	me := d.mesh
	dialCtx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	s, err := relay.DialStream(dialCtx, relay.StreamConfig{
		Relay: r.relay, NodeKey: me.cfg.Key, Logger: me.log, DialContext: dialOwn,
		Ticket: func() []byte {
			var t []byte
			me.ask(ctx, func(time.Time) { t = me.netmap.Ticket })
			return t
		},
		Deliver: func(src weft.NodeID, datagrams [][]byte) { me.engine.DeliverStream(r.relay.ID, src, datagrams) },
	})
	if err != nil {
		return err
	}
	defer s.Close()
	me.post(func(now time.Time) {
		r.stream, r.streamErr = s, ""
		if me.relays[r.relay.ID] == r {
			me.relaysChanged(now)
			me.sayUpdate()
		}
	})
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Done():
			return s.Err()
		case <-r.redial: // the network changed: does it still live?
			pingCtx, cancel := context.WithTimeout(ctx, beatPatience)
			_, err := s.Ping(pingCtx)
			cancel()
			if err != nil {
				return errors.New("the relay's stream is silent: " + err.Error())
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// relayName names a relay for a person.
func (me *mesh) relayName(id weft.RelayID) string {
	if r := me.relays[id]; r != nil && r.relay.Name != "" {
		return r.relay.Name
	}
	return "#" + strconv.Itoa(int(id))
}
