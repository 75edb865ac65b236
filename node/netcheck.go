package node

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/engine/underlay"
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
	var local []netip.Addr
	for _, c := range gather.Hosts(ifaces, 1, underlayMTU, m.Ranges) {
		doc.Interface = append(doc.Interface, c.Addr.Addr().String())
		local = append(local, c.Addr.Addr())
	}
	identity := d.state.Identity()
	var servers []netip.AddrPort
	for _, r := range m.Relays {
		line := weft.NetcheckRelay{Name: r.Name}
		addrs, err := relayUDPAddrs(relaysCtx, r, lookupAddrs)
		if err != nil {
			line.Error = err.Error()
		}
		servers = append(servers, addrs...)
		for _, a := range addrs {
			if rtt, err := gather.RTT(relaysCtx, a); err == nil && (line.UDPms == 0 || ms(rtt) < line.UDPms) {
				line.UDPms = ms(rtt)
			}
		}
		line.StreamMS, line.Stream, err = streamCheck(relaysCtx, d.liveStream(relaysCtx, r.ID), relay.StreamConfig{
			Relay: r, NodeKey: identity.Node, Logger: d.log, DialContext: dialOwn, Ticket: func() []byte { return m.Ticket },
		})
		if err != nil {
			line.Error = err.Error()
		}
		doc.Relays = append(doc.Relays, line)
	}
	// Only now: what else sends from this machine takes ports, of which the tests look at the order.
	natCtx, cancel := context.WithTimeout(ctx, natPatience)
	defer cancel()
	from, probe := d.vantages(natCtx, local)
	found := make([]weft.NetcheckLink, len(from))
	var all sync.WaitGroup
	for i, v := range from {
		found[i].Link, found[i].Interface = v.ID, v.Device
		all.Go(func() { found[i].IPv4 = v.family(natCtx, false, servers, probe) })
		all.Go(func() { found[i].IPv6 = v.family(natCtx, true, servers, probe) })
	}
	all.Wait()
	for _, f := range found {
		doc.UDP = doc.UDP || f.IPv4.Works || f.IPv6.Works
	}
	doc.IPv4, doc.IPv6 = found[0].IPv4, found[0].IPv6
	if from[0].ID != 0 {
		doc.Links = found
	}
	if !doc.UDP {
		doc.Problems = append(doc.Problems, "no STUN server answers over UDP: a firewall blocks it, and everything goes through a relay's stream")
	}
	return doc, nil
}

// A vantage is a link that a netcheck asks by.
type vantage struct {
	underlay.Link
	local   []netip.Addr  // of its interface
	probers []stun.Prober // the relays that the running network is bound to by it
}

// vantages are the links of the running network, and how to have relays probe; without one, what the routes say, from
// all of this machine's addresses.
func (d *Daemon) vantages(ctx context.Context, local []netip.Addr) (list []vantage, probe probeFunc) {
	var me *mesh
	if d.do(ctx, func() error { me = d.mesh; return nil }) == nil && me != nil {
		probe = me.probe
		me.ask(ctx, func(time.Time) {
			for _, l := range me.links.list {
				s := me.surroundings(l.ID)
				v := vantage{Link: l.Link, local: s.Local, probers: s.Probers}
				if l.ID == 0 {
					v.local = local
				}
				list = append(list, v)
			}
		})
	}
	if len(list) == 0 {
		list = []vantage{{local: local}}
	}
	return list, probe
}

type probeFunc = func(context.Context, netip.AddrPort, stun.Probe) bool

// family asks the servers of one address family.
func (v vantage) family(ctx context.Context, six bool, servers []netip.AddrPort, probe probeFunc) weft.NetcheckFamily {
	f := weft.NetcheckFamily{Mapping: "unknown", Filtering: "unknown", Outside: []netip.Addr{}, Prospects: []string{}}
	other := func(a netip.Addr) bool { return a.Unmap().Is6() != six }
	cfg := gather.BehaviourConfig{
		Servers: slices.DeleteFunc(slices.Clone(servers), func(a netip.AddrPort) bool { return other(a.Addr()) }),
		Local:   slices.DeleteFunc(slices.Clone(v.local), other),
		Probers: slices.DeleteFunc(slices.Clone(v.probers), func(p stun.Prober) bool { return other(p.Server.Addr()) }),
		Probe:   probe, Device: v.Device,
	}
	if len(cfg.Servers) == 0 || len(cfg.Local) == 0 {
		return f
	}
	r, err := gather.Behaviour(ctx, cfg)
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
