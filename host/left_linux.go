package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// Left lists in words what a process that is no more has left changed on this machine, by the name of its overlay's interface and its state
// directory.
func Left(tun, stateDir string) (list []string, err error) {
	resolver, err := ResolverLeft(stateDir)
	if err != nil {
		return nil, err
	}
	tables := func(string) bool { return false }
	if c, err := nftables.New(); err == nil {
		tables = func(name string) bool {
			there, err := hasTable(c, name)
			return err == nil && there
		}
	}
	routes := false
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := rulesTo(tableOf(tun), family)
		if err != nil && (family == netlink.FAMILY_V4 || hasIPv6("all")) {
			return nil, err
		}
		routes = routes || len(rules) > 0
	}
	_, err = os.Stat(filepath.Join(stateDir, portalFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, x := range []struct {
		there bool
		words string
	}{
		{resolver, "the system's resolver"},
		{routes, "routes into the overlay"},
		{tables(exitTable(tun)), "the way past the exit node, which was closed"},
		{tables(routerTable(tun)) || tables(withinTable(tun)), "what was passed on for others"},
		{err == nil || tables(portalTable(tun)), "the portal"},
	} {
		if x.there {
			list = append(list, x.words)
		}
	}
	return list, nil
}
