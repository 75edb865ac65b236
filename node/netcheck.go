package node

import (
	"context"
	"net/netip"
	"time"

	"weft"
	"weft/gather"
	"weft/host"
	"weft/relay"
)

// netcheckPatience bounds all of a netcheck: RFC 5780's tests wait for answers that do not come.
const netcheckPatience = 8 * time.Second

// Netcheck asks the relays, which answer STUN, what they see of this machine.
func (d *Daemon) Netcheck(ctx context.Context) (weft.Netcheck, error) {
	ctx, cancel := context.WithTimeout(ctx, netcheckPatience)
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
		addrs, err := relayUDPAddrs(ctx, r, lookupAddrs)
		if err != nil {
			line.Error = err.Error()
		}
		for _, a := range addrs {
			if a.Addr().Is4() {
				servers4 = append(servers4, a)
			} else {
				servers6 = append(servers6, a)
			}
			if rtt, err := gather.RTT(ctx, a); err == nil && (line.UDPms == 0 || ms(rtt) < line.UDPms) {
				line.UDPms = ms(rtt)
			}
		}
		line.StreamMS, line.Stream, err = streamCheck(ctx, d.liveStream(ctx, r.ID), relay.StreamConfig{
			Relay: r, NodeKey: identity.Node, Logger: d.log, Ticket: func() []byte { return m.Ticket },
		})
		if err != nil {
			line.Error = err.Error()
		}
		doc.Relays = append(doc.Relays, line)
	}
	doc.IPv4 = family(ctx, servers4, v4)
	doc.IPv6 = family(ctx, servers6, v6)
	doc.UDP = doc.IPv4.Works || doc.IPv6.Works
	if !doc.UDP {
		doc.Problems = append(doc.Problems, "no STUN server answers over UDP: a firewall blocks it, and everything goes through a relay's stream")
	}
	return doc, nil
}

func family(ctx context.Context, servers []netip.AddrPort, local []netip.Addr) weft.NetcheckFamily {
	f := weft.NetcheckFamily{Mapping: "unknown", Filtering: "unknown"}
	if len(servers) == 0 || len(local) == 0 {
		return f
	}
	r, err := gather.Behaviour(ctx, gather.BehaviourConfig{Servers: servers, Local: local})
	if err != nil || len(r.Seen) == 0 {
		return f
	}
	f.Works, f.Mapped = true, r.Seen[0].Mapped
	f.Mapping, f.Filtering = mappingWords[r.Mapping], filteringWords[r.Filtering]
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
