package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// portalFile, in the state directory, is the record of what a portal changed that is not in tables of its own: settings of
// the kernel, and addresses of the client's interface. It is written before anything is changed.
const portalFile = "portal-undo.json"

// A changed setting is one with what it was before.
type changed struct {
	setting
	Was string `json:"was"`
}

type portalRecord struct {
	Settings []changed `json:"settings,omitempty"`
	Lan      lanAddrs  `json:"lan,omitzero"`
}

// lanAddrs are addresses that an interface was given.
type lanAddrs struct {
	Interface string         `json:"interface"`
	Addrs     []netip.Prefix `json:"addrs"`
}

// missing is what the link does not have by itself.
func (l lanAddrs) missing(link netlink.Link) *lanAddrs {
	have, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return &l
	}
	l.Addrs = slices.DeleteFunc(slices.Clone(l.Addrs), func(p netip.Prefix) bool {
		return slices.ContainsFunc(have, func(a netlink.Addr) bool { q, ok := prefixOf(a.IPNet); return ok && q == p })
	})
	return &l
}

// reversePath is what keeps a strict reverse path filter (RFC 3704) from dropping what comes by an interface although answers
// would not go there: the loose one, where it is strict.
func reversePath(iface string) []setting {
	path := settingPath("net/ipv4/conf", iface, "rp_filter")
	if filtersStrictly(path) {
		return []setting{{path, "2"}}
	}
	return nil
}

// changeSettings records what is changed for a portal, and changes the settings. The addresses, if any, are only recorded.
func changeSettings(stateDir string, want []setting, lan *lanAddrs) error {
	record := portalRecord{}
	for _, s := range want {
		if was := readSetting(s.Path); was != "" && was != s.Set { // of what this kernel has not there is nothing to set
			record.Settings = append(record.Settings, changed{s, was})
		}
	}
	if lan != nil {
		record.Lan = *lan
	}
	b, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	if err := WriteFileAtomic(filepath.Join(stateDir, portalFile), append(b, '\n'), 0o600); err != nil {
		return err
	}
	for _, c := range record.Settings {
		if err := writeSetting(c.setting); err != nil {
			return err
		}
	}
	return nil
}

// restoreSettings puts everything back and forgets it.
func restoreSettings(stateDir string) error {
	record, err := readRecord(stateDir)
	if err != nil {
		return err
	}
	if err := record.undo(); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(stateDir, portalFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// undo puts back what nobody has changed since.
func (r portalRecord) undo() error {
	var errs []error
	for _, c := range slices.Backward(r.Settings) {
		if readSetting(c.Path) == c.Set {
			errs = append(errs, writeSetting(setting{c.Path, c.Was}))
		}
	}
	link, err := netlink.LinkByName(r.Lan.Interface)
	if err != nil { // with the interface its addresses have gone
		return sentence(errs...)
	}
	for _, a := range r.Lan.Addrs {
		if err := netlink.AddrDel(link, &netlink.Addr{IPNet: netOf(a)}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("remove the address %v: %w", a, advice(err)))
		}
	}
	return sentence(errs...)
}

func readRecord(stateDir string) (r portalRecord, err error) {
	path := filepath.Join(stateDir, portalFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, fmt.Errorf("the record of what a portal changed cannot be read: %w (delete %s, and set back by hand what it says)", err, path)
	}
	for _, c := range r.Settings {
		if !strings.HasPrefix(filepath.Clean(c.Path), "net/") {
			return r, fmt.Errorf("the record of what a portal changed names %q, which no portal changes: delete %s", c.Path, path)
		}
	}
	return r, nil
}
