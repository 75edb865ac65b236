package scenario

import "weft/lab/vnet"

// A Link is a leg of the network, each direction.
type Link = vnet.LinkConfig
