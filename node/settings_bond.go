package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weft"
)

// What weft set says of bonding: docs/bonding.md.

// BondModes are what Settings.Bond may be, BondControls what Settings.Congestion may: the first of each is the default,
// and is kept as "".
var (
	BondModes    = []string{"aggregate", "redundant", "off"}
	BondControls = []string{"bbr", "cubic", "reno"}
)

// MaxBondRules bounds Settings.Redundant: each is looked at for each packet.
const MaxBondRules = 16

// BondFor is the mode of bonding with a peer, one of BondModes.
func (s Settings) BondFor(peer string) string {
	if mode := s.BondPeers[peer]; mode != "" {
		return mode
	}
	return orFirst(s.Bond, BondModes)
}

// CongestionOr is the congestion control of each path, one of BondControls.
func (s Settings) CongestionOr() string { return orFirst(s.Congestion, BondControls) }

func orFirst(v string, of []string) string {
	if v == "" {
		return of[0]
	}
	return v
}

// sameBond compares what is said of bonding.
func (s Settings) sameBond(o Settings) bool {
	return orFirst(s.Bond, BondModes) == orFirst(o.Bond, BondModes) && maps.Equal(s.BondPeers, o.BondPeers) &&
		slices.Equal(s.Redundant, o.Redundant) && s.CongestionOr() == o.CongestionOr()
}

// checkBond says what is wrong with settings of bonding that somebody wants, if anything is.
func (s Settings) checkBond() error {
	bad := func(format string, args ...any) error {
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
	}
	if s.Bond != "" && !slices.Contains(BondModes, s.Bond) {
		return bad("bond is %s, not %q", oneOf(BondModes), s.Bond)
	}
	for name, mode := range s.BondPeers {
		switch {
		case name == "" || weft.CleanName(name) != name:
			return bad("bond.%s names no peer: give a name that `weft status` lists, for example bond.desk=off", name)
		case !slices.Contains(BondModes, mode):
			return bad("bond.%s is %s, not %q", name, oneOf(BondModes), mode)
		}
	}
	if s.Congestion != "" && !slices.Contains(BondControls, s.Congestion) {
		return bad("congestion is %s, not %q", oneOf(BondControls), s.Congestion)
	}
	if len(s.Redundant) > MaxBondRules {
		return bad("redundant has %d rules: give at most %d", len(s.Redundant), MaxBondRules)
	}
	return nil
}

// setBonding takes over what settings say of bonding, without a new start.
func (me *mesh) setBonding(_ time.Time, s Settings) {
	c := &me.cfg.Settings
	c.Bond, c.BondPeers, c.Redundant, c.Congestion = s.Bond, s.BondPeers, s.Redundant, s.Congestion
	for _, p := range me.peers {
		p.due = true
	}
}

// oneOf lists words as a person does.
func oneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
