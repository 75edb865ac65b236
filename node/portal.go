package node

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"weft"
	"weft/host"
)

// Roles of a portal.
const (
	PortalRemote = "remote"
	PortalLocal  = "local"
	PortalOff    = "off"
)

const (
	// portalPatience is how long weft portal waits for the other end before it says that it goes on trying.
	portalPatience = 15 * time.Second
	// MaxPortalKeep bounds what a remote portal keeps: each is a rule of the kernel's.
	MaxPortalKeep = 64
)

// errPortalExit is of a local end on a machine that sends all its own packets elsewhere: the world is behind one peer only.
var errPortalExit = &weft.Error{Code: weft.CodeBadRequest,
	Message: "this node uses an exit node, and a local portal has the world behind its other end: say `weft set exit-node=off` or `weft portal off` first"}

// A PortalRequest asks the daemon to be one end of a portal, and is kept in its settings. docs/portal.md.
type PortalRequest struct {
	Role string `json:"role"`
	Peer string `json:"peer,omitempty"` // the other end, as a person calls it
	// Number is the peer's, found by the name when it was asked for: whoever gets that name later is not meant.
	Number weft.NodeID `json:"number,omitempty"`
	// Interface is in front of the client, or has the addresses: there "" is what the default route leaves by.
	Interface string           `json:"interface,omitempty"`
	Keep      []weft.PortRange `json:"keep,omitempty"`      // of a remote end, besides what weft itself needs
	DHCP      bool             `json:"dhcp,omitempty"`      // of a local end: tell clients their addresses, and be their router in IPv6
	Share     netip.Prefix     `json:"share,omitzero"`      // of a local end: many clients, in this private network
	Resolvers []netip.Addr     `json:"resolvers,omitempty"` // of a local end with DHCP, in place of the remote end's
}

// orNone is nil of the zero value.
func (q PortalRequest) orNone() *PortalRequest {
	if q.Role == "" {
		return nil
	}
	return &q
}

// Check says what is wrong with a request, if anything is.
func (q PortalRequest) Check() error {
	bad := func(format string, args ...any) error {
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case q.Role == PortalOff:
		return nil
	case q.Role != PortalRemote && q.Role != PortalLocal:
		return bad("a portal is %s, %s or %s, not %q", PortalRemote, PortalLocal, PortalOff, q.Role)
	case q.Peer == "":
		return bad("name the other end of the portal, as `weft status` lists it")
	case len(q.Keep) > MaxPortalKeep:
		return bad("a portal keeps at most %d ranges of ports, not %d", MaxPortalKeep, len(q.Keep))
	case q.Role == PortalLocal && q.Interface == "":
		return bad("name the interface that the client is at")
	case q.Share.IsValid() && (!q.Share.Addr().Is4() || q.Share.Bits() > 30 || q.Share.Bits() < 8 || q.Share.Addr() == q.Share.Masked().Addr() || !q.Share.Addr().IsPrivate()):
		return bad("%v is no address in a private network of IPv4: give for example 192.168.77.1/24", q.Share)
	}
	return nil
}

// Portal makes the node one end of a portal, or none, and waits until addresses are handed over.
func (d *Daemon) Portal(ctx context.Context, q PortalRequest) (weft.PortalStatus, error) {
	if err := q.Check(); err != nil {
		return weft.PortalStatus{}, err
	}
	if d.cfg.Userspace && q.Role != PortalOff {
		return weft.PortalStatus{}, &weft.Error{Code: weft.CodeBadRequest, Message: "a portal takes a network interface: run `weft node` as root and without --userspace"}
	}
	var me *mesh
	err := d.do(ctx, func() error {
		s := d.state.Settings()
		s.Portal = PortalRequest{}
		if q.Role == PortalLocal && s.ExitNode != "" {
			return errPortalExit
		}
		if q.Role != PortalOff {
			if me = d.mesh; me == nil {
				return errNotUp
			}
			var peer weft.Node
			found := false
			me.ask(ctx, func(time.Time) { peer, found = me.netmap.Find(q.Peer) })
			if !found || peer.Plain() {
				return me.notFound(q.Peer)
			}
			q.Peer, q.Number = peer.Name, peer.ID
			s.Portal = q
		}
		if err := d.state.SetSettings(s); err != nil {
			return err
		}
		if me = d.mesh; me != nil {
			me.ask(ctx, func(now time.Time) { me.setPortal(now, s.Portal.orNone()) })
		}
		return nil
	})
	if err != nil || q.Role == PortalOff {
		return weft.PortalStatus{Schema: weft.SchemaVersion, Role: PortalOff, Addrs: []netip.Prefix{}}, err
	}
	ctx, cancel := context.WithTimeout(ctx, portalPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var s weft.PortalStatus
		refused := false
		if !me.ask(ctx, func(time.Time) { s, refused = me.portalStatus(), me.portal.refused }) && ctx.Err() == nil {
			return s, errWentDown
		}
		if s.Open || refused {
			return s, portalError(s)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s, portalError(s)
		}
	}
}

// portalError is what a portal that is not open means to who asked for it.
func portalError(s weft.PortalStatus) error {
	if s.Open {
		return nil
	}
	why := s.Problem
	if why == "" {
		why = "the other end, " + s.Peer + ", has not answered"
	}
	return &weft.Error{Code: weft.CodeUnavailable, Message: "the portal is not open yet, and still trying: " + why}
}

// PortalStatus says how the portal does.
func (d *Daemon) PortalStatus(ctx context.Context) (weft.PortalStatus, error) {
	off := weft.PortalStatus{Schema: weft.SchemaVersion, Role: PortalOff, Addrs: []netip.Prefix{}}
	var me *mesh
	var q *PortalRequest
	if err := d.do(ctx, func() error {
		me, q = d.mesh, d.state.Settings().Portal.orNone()
		return nil
	}); err != nil || q == nil {
		return off, err
	}
	s := off
	s.Role, s.Peer, s.Interface, s.Problem = q.Role, q.Peer, q.Interface, "the network is not up here: say `weft up`"
	if me != nil {
		me.ask(ctx, func(time.Time) { s = me.portalStatus() })
	}
	return s, nil
}

// repairPortal takes back what a run before this one left.
func (d *Daemon) repairPortal() {
	if d.cfg.Userspace {
		return
	}
	if err := host.ClosePortal(d.cfg.TUN, d.cfg.StateDir); err != nil {
		d.log.Warn("what an earlier run left of its portal could not be taken back", "error", err)
	}
}
