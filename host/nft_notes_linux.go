package host

import (
	"slices"
	"strings"

	"github.com/google/nftables"
)

// What weft changes of the kernel's settings for the sake of a table is noted in that table: an empty chain, whose name is noted and the
// setting. So the note is there before the setting is changed, is found by whoever comes after, and goes with the table.

// notePrefix begins the names of such chains; behind it are what was found, what was set, and the path below /proc/sys with dots in
// place of slashes and slashes in place of dots, as sysctl(8) has it.
const notePrefix = "was-"

// swapped turns the path of a setting into a chain's name, and back.
var swapped = strings.NewReplacer("/", ".", ".", "/")

// note notes settings that are to be changed, with what they are now.
func (t *nftTable) note(list []changed) {
	for _, c := range list {
		t.jumped(notePrefix + c.Was + "-" + c.Set + "-" + swapped.Replace(c.Path))
	}
}

// noted are the settings that are noted in tables of weft's.
func noted(wanted func(table string) bool) (out []changed) {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil
	}
	for _, c := range chains {
		rest, ok := strings.CutPrefix(c.Name, notePrefix)
		if !ok || c.Table == nil || !strings.HasPrefix(c.Table.Name, nftPrefix) || !wanted(c.Table.Name) {
			continue
		}
		if part := strings.SplitN(rest, "-", 3); len(part) == 3 && strings.HasPrefix(swapped.Replace(part[2]), "net/") {
			out = append(out, changed{setting{swapped.Replace(part[2]), part[1]}, part[0]})
		}
	}
	return out
}

// toNote are settings that are to be noted in a table when it is put up: those that are noted there already, and of those that are
// wanted what is otherwise now, or was before another table had it changed.
func toNote(table string, want []setting) []changed {
	out := noted(func(t string) bool { return t == table })
	others := noted(func(t string) bool { return t != table })
	for _, s := range want {
		is := func(c changed) bool { return c.setting == s }
		if slices.ContainsFunc(out, is) {
			continue
		}
		c := changed{s, readSetting(s.Path)}
		if i := slices.IndexFunc(others, is); i >= 0 {
			c = others[i]
		}
		if c.Was != "" && c.Was != s.Set {
			out = append(out, c)
		}
	}
	return out
}

// change changes what was noted.
func change(list []changed) error {
	var errs []error
	for _, c := range list {
		errs = append(errs, writeSetting(c.setting))
	}
	return sentence(errs...)
}

// putBack undoes what is noted in a table and not in another one, if nobody has changed it since.
func putBack(table string) error {
	others := noted(func(t string) bool { return t != table })
	var errs []error
	for _, c := range noted(func(t string) bool { return t == table }) {
		needed := slices.ContainsFunc(others, func(o changed) bool { return o.setting == c.setting })
		if !needed && readSetting(c.Path) == c.Set {
			errs = append(errs, writeSetting(setting{c.Path, c.Was}))
		}
	}
	return sentence(errs...)
}
