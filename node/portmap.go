package node

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/gather/portmap"
)

// portMaps keeps the node's UDP port mapped at the routers in front of it. All but the client, which has goroutines
// of its own, is the mesh's goroutine's. The zero value maps nothing.
type portMaps struct {
	client *portmap.Client // nil: switched off
	states []portmap.State
	ended  chan struct{}
}

// start begins to map the mesh's port, until ctx ends. The function that it returns waits until routers were told
// that the mapping is not needed any more, two seconds at most.
func (m *portMaps) start(ctx context.Context, me *mesh) (wait func()) {
	m.ended = make(chan struct{})
	m.client = portmap.New(portmap.Config{
		Port: me.engine.Port(), Logger: me.log,
		Changed: func(states []portmap.State) {
			select {
			case me.calls <- func(now time.Time) { m.states = states; me.gatherLocal(now) }:
			case <-ctx.Done(): // the mesh may be waiting for us
			}
		},
	})
	go func() {
		defer close(m.ended)
		m.client.Run(ctx)
	}()
	return func() { <-m.ended }
}

// candidates are where routers pass packets on from, each to the link that the router is on. Left out are addresses
// within the overlay: a provider's NAT may have one of the same range, which means something else to peers.
func (m *portMaps) candidates(me *mesh) (list []weft.Candidate) {
	for _, s := range m.states {
		external := s.Mapping.External
		link, ok := me.linkOf(s.Mapping.Internal.Addr())
		if external.IsValid() && ok && !slices.ContainsFunc(me.netmap.Ranges, func(r netip.Prefix) bool { return r.Contains(external.Addr()) }) {
			list = append(list, weft.Candidate{Addr: external, Kind: weft.PortMapped, Link: link})
		}
	}
	return list
}

// recheck looks at the routers anew: the network changed.
func (m *portMaps) recheck() {
	if m.client != nil {
		m.client.Recheck()
	}
}
