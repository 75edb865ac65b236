package node

import (
	"context"
	"errors"
	"time"

	"weft"
)

// shorten takes the network's domain off the names of nodes.
func (s *Settings) shorten(domain string) {
	s.ExitNode = weft.ShortName(s.ExitNode, domain)
	peers := make(map[string]string, len(s.BondPeers))
	for name, mode := range s.BondPeers {
		peers[weft.ShortName(name, domain)] = mode
	}
	s.BondPeers = peers
}

// SetSettings stores settings and acts on them.
func (d *Daemon) SetSettings(ctx context.Context, s Settings) error {
	if m := d.state.Map(); m != nil {
		s.shorten(m.Domain)
	}
	if err := errors.Join(checkMTU(s.MTU), s.checkBond(), s.CheckTCP(), s.checkRoutes()); err != nil {
		return err
	}
	return d.do(ctx, func() error {
		old := d.state.Settings()
		if old.Portal.Role == PortalLocal && s.ExitNode != "" {
			return errPortalExit
		}
		s.Down, s.Kept, s.Portal = old.Down, old.Kept, old.Portal
		if s.Equal(old) {
			return nil
		}
		if s.ExitNode != old.ExitNode {
			if err := checkExit(s.ExitNode, d.state.Map()); err != nil {
				return err
			}
		}
		if err := d.state.SetSettings(s); err != nil {
			return err
		}
		d.log.Info("settings changed", "old", old, "new", s)
		if s.sameNetwork(old) && d.mesh != nil {
			d.mesh.ask(ctx, func(now time.Time) {
				d.mesh.setBonding(now, s)
				if !s.sameRoutes(old.RouteSettings) {
					d.mesh.setRoutes(now, s)
				}
			})
			return nil
		}
		if s.ExitNode == "" && old.ExitNode != "" {
			if err := d.releaseExit(); err != nil {
				return err
			}
		}
		d.stopAll()
		d.start()
		return nil
	})
}
