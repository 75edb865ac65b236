package control

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"weft"
	"weft/control/store"
	"weft/key"
	"weft/wire"
)

// Members that speak plain WireGuard: phones and routers that run no weft. The administrator brings one in, by its
// public key, at a gateway: a node that has the other end of its tunnel. Nothing of it connects to the server. What the
// map says of it is the same for all: who it is, and by way of whom. The gateway tells which of its own have a session.
//
// A tunnel's configuration names the gateway's key, so a member and its gateway stay together: the gateway is not
// removed while it has any, and when it leaves by itself they go with it.

// CreatePlain makes a member that speaks plain WireGuard. The answer says what its configuration needs.
func (s *Server) CreatePlain(ctx context.Context, r PlainRequest) (PlainAnswer, error) {
	if err := s.checkPlain(r); err != nil {
		return PlainAnswer{}, err
	}
	var e entry
	a := PlainAnswer{Schema: weft.SchemaVersion}
	err := s.do(ctx, func(t *tx) error {
		if err := t.checkKey(KeyRequest{User: r.User}); err != nil {
			return err
		}
		tags, err := cleanTags(r.Tags)
		if err == nil {
			err = t.mayTag(r.User, tags)
		}
		if err != nil {
			return err
		}
		if _, ok := t.s.index.keys[r.Key]; ok {
			return sentence(weft.CodeDenied, "this public key is a member's already: make another key pair")
		}
		gateway, at, err := t.gateway(r)
		if err != nil {
			return err
		}
		e = entry{Node: store.Node{
			Key: r.Key, Name: t.s.index.names.free(r.Name), User: r.User, Tags: tags, Created: t.stamp(), Gateway: gateway.ID,
			Approved: t.stamp(),
		}}
		if r.Lifetime > 0 {
			e.Expires = t.stamp().Add(r.Lifetime).Truncate(store.Precision)
		}
		if err := t.number(&e); err != nil {
			return err
		}
		t.putNode(e, true)
		a.Gateway = GatewayInfo{ID: gateway.ID, Name: gateway.Name, Key: gateway.Key, Endpoint: at.endpoint, Note: at.note}
		a.Ranges, a.Service = []netip.Prefix{t.net.IPv4, t.net.IPv6}, serviceAddr(t.net.IPv4)
		a.Domain = t.resolving.doc.domain()
		return nil
	})
	if err != nil {
		return PlainAnswer{}, err
	}
	s.log.Info("plain node made", "node", e.Name, "id", e.ID, "gateway", a.Gateway.Name)
	a.Node = e.info()
	return a, nil
}

func (s *Server) checkPlain(r PlainRequest) error {
	if r.Lifetime < 0 || r.Lifetime > maxLifetime {
		return sentence(weft.CodeBadRequest, "a node cannot end %v from now", r.Lifetime)
	}
	if _, err := key.Agree(s.keys.Server, r.Key, lowOrderTest); err != nil || r.Key.IsZero() {
		return sentence(weft.CodeBadRequest, "the public key is none that keeps a secret: make another key pair (wg genkey)")
	}
	if r.Endpoint == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(r.Endpoint)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 || !isHost(host) {
		return sentence(weft.CodeBadRequest, "%.80q is not where a gateway can be reached: give HOST:PORT, for example vpn.example.org:41641", r.Endpoint)
	}
	return nil
}

// isHost reports whether s may stand in a configuration as an address or a name: nothing in it ends a line or begins
// another meaning there.
func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return s != "" && len(s) <= 253 && !slices.ContainsFunc([]byte(s), func(c byte) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.')
	})
}

// reach is where a gateway is reached, how good that is (less is better), and what is to be said of it.
type reach struct {
	endpoint string
	rank     int
	note     string
}

// Ranks of where a gateway may be reached: what somebody knows, what anybody can reach, what perhaps, what some.
const (
	rankGiven = iota
	rankPublic4
	rankPublic6
	rankMapped
	rankBehindNAT
	rankPrivate
	rankNone
)

// gateway finds the node that a request is for, or the one that is best reached where it names none.
func (t *tx) gateway(r PlainRequest) (*entry, reach, error) {
	if r.Via != "" {
		g, err := t.nodeNamed(r.Via)
		if err != nil {
			return nil, reach{}, err
		}
		at := reachOf(&g, r.Endpoint)
		switch {
		case g.Gateway != 0:
			return nil, at, sentence(weft.CodeBadRequest, "%s speaks plain WireGuard itself and is nobody's gateway: choose a node that runs weft", g.Name)
		case g.standing != member:
			return nil, at, sentence(weft.CodeDenied, "%s cannot be a gateway now: %v", g.Name, standingError(&g))
		case g.Ephemeral:
			return nil, at, sentence(weft.CodeBadRequest, "%s is ephemeral, and its key goes with it: choose a node that stays", g.Name)
		case len(t.s.index.behind[g.ID]) >= wire.MaxHeard:
			return nil, at, sentence(weft.CodeExhausted, "%s is the gateway of %d nodes already: choose another one", g.Name, wire.MaxHeard)
		case at.rank == rankNone:
			return nil, at, sentence(weft.CodeUnavailable, "it is not known where %s can be reached, since it is not connected: start it, or say it with --endpoint HOST:PORT", g.Name)
		}
		return &g, at, nil
	}
	var best *entry
	at := reach{rank: rankNone}
	for _, e := range t.nodes.all() {
		if e.Gateway != 0 || e.standing != member || e.Ephemeral || !e.online || len(t.s.index.behind[e.ID]) >= wire.MaxHeard {
			continue
		}
		if r := reachOf(e, r.Endpoint); r.rank < at.rank {
			best, at = e, r
		}
	}
	if best == nil {
		return nil, at, sentence(weft.CodeUnavailable, "no node is online that could be the gateway: start one, or name one with --via NODE --endpoint HOST:PORT")
	}
	return best, at, nil
}

// reachOf picks where a phone that may be anywhere reaches a node. Phones without IPv6 are many, machines without IPv4 few.
func reachOf(e *entry, given string) reach {
	if given != "" {
		return reach{endpoint: given, rank: rankGiven}
	}
	best := reach{rank: rankNone}
	for _, c := range e.candidates {
		rank := rankNone
		switch a := c.Addr.Addr(); {
		case c.Kind == weft.Static:
			rank = rankGiven
		case c.Kind == weft.Host && private(a):
			rank = rankPrivate
		case c.Kind == weft.Host && a.Is4():
			rank = rankPublic4
		case c.Kind == weft.Host:
			rank = rankPublic6
		case c.Kind == weft.PortMapped:
			rank = rankMapped
		case c.Kind == weft.ServerReflexive && a.Is4():
			rank = rankBehindNAT
		}
		if rank < best.rank {
			best = reach{endpoint: c.Addr.String(), rank: rank}
		}
	}
	switch best.rank {
	case rankBehindNAT:
		best.note = fmt.Sprintf("%s is behind a NAT that may let nobody in at %s: if it does not work, pass a UDP port on to it there and give --endpoint", e.Name, best.endpoint)
	case rankPrivate:
		best.note = fmt.Sprintf("%s is the address of %s in its own network: from elsewhere it cannot be reached there", best.endpoint, e.Name)
	}
	return best
}

// sharedSpace is what providers number their customers from, behind a NAT of theirs (RFC 6598).
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

func private(a netip.Addr) bool {
	return a.IsPrivate() || !a.IsGlobalUnicast() || sharedSpace.Contains(a)
}

// number gives a new node its number and addresses.
func (t *tx) number(e *entry) (err error) {
	n := t.net
	if n.NextNode == ^weft.NodeID(0) {
		return sentence(weft.CodeExhausted, "the server has given out all of its 4,294,967,294 node numbers: set up a new network")
	}
	e.ID = n.NextNode
	if e.IPv4, e.IPv6, err = giveAddrs(&n, e.ID); err != nil {
		return err
	}
	n.NextNode++
	t.setNetwork(n)
	return nil
}

// behind lists the plain members at a gateway by number.
func (t *tx) behind(gateway weft.NodeID) []weft.NodeID {
	return slices.Sorted(maps.Keys(t.s.index.behind[gateway]))
}

// setBehind notes that a plain member is, or is no longer, at its gateway. Its undo is the caller's.
func (ix *index) setBehind(e *entry, is bool) {
	switch {
	case e.Gateway == 0:
	case !is:
		delete(ix.behind[e.Gateway], e.ID)
		if len(ix.behind[e.Gateway]) == 0 {
			delete(ix.behind, e.Gateway)
		}
	default:
		if ix.behind[e.Gateway] == nil {
			ix.behind[e.Gateway] = make(map[weft.NodeID]struct{})
		}
		ix.behind[e.Gateway][e.ID] = struct{}{}
	}
}

// hear takes note of which plain members at a gateway have a session with it.
func (t *tx) hear(gateway weft.NodeID, heard []weft.NodeID) {
	if len(t.s.index.behind[gateway]) == 0 {
		return
	}
	is := make(map[weft.NodeID]bool, len(heard))
	for _, id := range heard {
		is[id] = true
	}
	for _, id := range t.behind(gateway) {
		found, ok := t.nodes.get(uint32(id))
		if !ok || found.online == is[id] {
			continue
		}
		e := *found
		if e.online = is[id]; !e.online {
			e.Seen = t.stamp()
			t.after = append(t.after, func() { t.s.index.seen[id] = e.Seen })
		}
		t.putNode(e, false)
	}
}
