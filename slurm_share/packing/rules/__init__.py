"""Pure rules of packing: records in, decisions out."""
