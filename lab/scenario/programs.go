package scenario

import (
	"net/netip"
	"path/filepath"
	"strings"

	"weft"
)

// Environment is what a command of a scenario finds in its environment, beside what its backend has in its own:
//
//	WEFT_LAB_SELF   the name of the machine that it runs on
//	WEFT_LAB_DIR    a directory of that machine's own, empty at first
//	WEFT_LAB_SHARED a directory that all machines share, for keys to be exchanged by; mkdir -p makes it
//	WEFT_LAB_PEER   of a probe: the name of the machine that it asks about
//	ADDR_NAME       the IPv4 address of every machine as it has it itself, its name in capitals and underscores
//	GATEWAY_NAME    of every machine: the IPv4 address that it sends by, if nothing else is said
//	PUBLIC_NAME     of every router that translates: its first address outside
func Environment(self, peer, dir string, addrs, gateways, public map[string]netip.Addr) []string {
	list := []string{"WEFT_LAB_SELF=" + self, "WEFT_LAB_DIR=" + dir, "WEFT_LAB_SHARED=" + filepath.Join(filepath.Dir(dir), "shared")}
	if peer != "" {
		list = append(list, "WEFT_LAB_PEER="+peer)
	}
	for prefix, of := range map[string]map[string]netip.Addr{"ADDR_": addrs, "GATEWAY_": gateways, "PUBLIC_": public} {
		for name, a := range of {
			list = append(list, prefix+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+a.String())
		}
	}
	return list
}

// ProbeAnswer is what the output of a probe's command says: its last word, if that is direct or relay.
func ProbeAnswer(output string) (path weft.PathKind, ok bool) {
	words := strings.Fields(output)
	if len(words) == 0 {
		return "", false
	}
	last := words[len(words)-1]
	return weft.PathKind(last), last == "direct" || last == "relay"
}
