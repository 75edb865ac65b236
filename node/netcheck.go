package node

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"weft"
	"weft/gather"
	"weft/host"
	"weft/relay"
	"weft/stun"
)

// relaysPatience and natPatience bound the two halves of a netcheck: relays that are not there, and tests that
// wait for answers that a NAT keeps out.
const (
	relaysPatience = 8 * time.Second
	natPatience    = 12 * time.Second
)

// Netcheck asks the relays, which answer STUN, what they see of this machine.
func (d *Daemon) Netcheck(ctx context.Context) (weft.Netcheck, error) {
	relaysCtx, cancel := context.WithTimeout(ctx, relaysPatience)
	defer cancel()
	doc := weft.Netcheck{Schema: weft.SchemaVersion, Relays: []weft.NetcheckRelay{}, Interface: []string{}, Problems: []string{}}
	m := d.state.Map()
	if m == nil {
		return doc, &weft.Error{Code: weft.CodeUnavailable, Message: "no relay is known yet, so there is nobody to ask: join a network first with `weft up TOKEN`"}
	}
	ifaces, err := host.Interfaces()
	if err != nil {
		return doc, err
	}
	var v4, v6 []netip.Addr
	for _, c := range gather.Hosts(ifaces, 1, underlayMTU, m.Ranges) {
		doc.Interface = append(doc.Interface, c.Addr.Addr().String())
		if c.Addr.Addr().Is4() {
			v4 = append(v4, c.Addr.Addr())
		} else {
			v6 = append(v6, c.Addr.Addr())
		}
	}
	identity := d.state.Identity()
	var servers4, servers6 []netip.AddrPort
	for _, r := range m.Relays {
		line := weft.NetcheckRelay{Name: r.Name}
		addrs, err := relayUDPAddrs(relaysCtx, r, lookupAddrs)
		if err != nil {
			line.Error = err.Error()
		}
		for _, a := range addrs {
			if a.Addr().Is4() {
				servers4 = append(servers4, a)
			} else {
				servers6 = append(servers6, a)
			}
			if rtt, err := gather.RTT(relaysCtx, a); err == nil && (line.UDPms == 0 || ms(rtt) < line.UDPms) {
				line.UDPms = ms(rtt)
			}
		}
		line.StreamMS, line.Stream, err = streamCheck(relaysCtx, d.liveStream(relaysCtx, r.ID), relay.StreamConfig{
			Relay: r, NodeKey: identity.Node, Logger: d.log, Ticket: func() []byte { return m.Ticket },
		})
		if err != nil {
			line.Error = err.Error()
		}
		doc.Relays = append(doc.Relays, line)
	}
	// Only now: what else sends from this machine takes ports, of which the tests look at the order.
	natCtx, cancel := context.WithTimeout(ctx, natPatience)
	defer cancel()
	probers, probe := d.probers(natCtx)
	var both sync.WaitGroup
	both.Go(func() { doc.IPv4 = family(natCtx, servers4, v4, probers, probe) })
	both.Go(func() { doc.IPv6 = family(natCtx, servers6, v6, probers, probe) })
	both.Wait()
	doc.UDP = doc.IPv4.Works || doc.IPv6.Works
	if !doc.UDP {
		doc.Problems = append(doc.Problems, "no STUN server answers over UDP: a firewall blocks it, and everything goes through a relay's stream")
	}
	return doc, nil
}

// probers are the relays that the running network is bound to, and how to have them probe.
func (d *Daemon) probers(ctx context.Context) ([]stun.Prober, probeFunc) {
	var me *mesh
	if d.do(ctx, func() error { me = d.mesh; return nil }) != nil || me == nil {
		return nil, nil
	}
	var s gather.Surroundings
	me.ask(ctx, func(time.Time) { s = me.surroundings() })
	return s.Probers, me.probe
}

type probeFunc = func(context.Context, netip.AddrPort, stun.Probe) bool

func family(ctx context.Context, servers []netip.AddrPort, local []netip.Addr, probers []stun.Prober, probe probeFunc) weft.NetcheckFamily {
	f := weft.NetcheckFamily{Mapping: "unknown", Filtering: "unknown", Outside: []netip.Addr{}, Prospects: []string{}}
	if len(servers) == 0 || len(local) == 0 {
		return f
	}
	r, err := gather.Behaviour(ctx, gather.BehaviourConfig{Servers: servers, Local: local, Probers: probers, Probe: probe})
	if err != nil || len(r.Seen) == 0 {
		return f
	}
	f.Works, f.Mapped, f.NAT, f.Outside = true, r.Seen[0].Mapped, r.NAT, r.Outside
	f.Mapping, f.Filtering = mappingWords[r.Mapping], filteringWords[r.Filtering]
	f.Prospects = prospects(r)
	return f
}

// RFC 4787's words, as scripts have always read them in the document of weft netcheck.
var (
	mappingWords = [...]string{
		weft.MappingUnknown:                 "unknown",
		weft.NoNAT:                          "No NAT",
		weft.EndpointIndependentMapping:     "Endpoint-Independent Mapping",
		weft.AddressDependentMapping:        "Address-Dependent Mapping",
		weft.AddressAndPortDependentMapping: "Address and Port-Dependent Mapping",
	}
	filteringWords = [...]string{
		weft.FilteringUnknown:                 "unknown",
		weft.EndpointIndependentFiltering:     "Endpoint-Independent Filtering",
		weft.AddressDependentFiltering:        "Address-Dependent Filtering",
		weft.AddressAndPortDependentFiltering: "Address and Port-Dependent Filtering",
	}
)

// liveStream is the stream to a relay that is in use, or nil.
func (d *Daemon) liveStream(ctx context.Context, id weft.RelayID) (live *relay.Stream) {
	var me *mesh
	if d.do(ctx, func() error { me = d.mesh; return nil }) != nil || me == nil {
		return nil
	}
	me.ask(ctx, func(time.Time) {
		if r := me.relays[id]; r != nil {
			live = r.stream
		}
	})
	return live
}

// streamCheck says in milliseconds how far a relay's stream is and how it was reached. A live stream is asked: the
// relay keeps one of a node, and another would take its place.
func streamCheck(ctx context.Context, live *relay.Stream, cfg relay.StreamConfig) (float64, string, error) {
	s := live
	if s == nil {
		var err error
		if s, err = relay.DialStream(ctx, cfg); err != nil {
			return 0, "", err
		}
		defer s.Close()
	}
	rtt, err := s.Ping(ctx)
	if err != nil {
		return 0, "", err
	}
	return ms(rtt), string(s.Info().Transport), nil
}
